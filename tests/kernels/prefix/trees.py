"""Random trees of conversations, asked of a real model in any order, each answer beside that of an empty cache."""

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from neuron.actors.device.jobs import Sequence
from neuron.actors.prefix.cache import PrefixCache
from neuron.actors.prefix.prefill import Prefill
from neuron.actors.resident import Resident
from neuron.actors.settings import PrefixCacheSettings
from neuron.actors.steps import Steps
from neuron.kernels.engine import DeviceModel
from neuron.runtime.errors import NeuronError
from neuron.runtime.logs import get_logger
from ops.bench.direct import DirectDevice, direct_resident

TURN_END = 3
CHUNK = 96
_log = get_logger(__name__)


class LeftEarly(NeuronError):
    """The client left between two chunks."""


@dataclasses.dataclass(slots=True)
class Asked:
    row: npt.NDArray[np.float32]
    tokens: list[int]
    reused: int


class Conversations:
    """`cold` answers from an empty cache, `warm` from what earlier prompts left; both run the same model."""

    def __init__(
        self, model: DeviceModel, budget_bytes: int, *, seed: int, spacing: int = 24, every: int = 120
    ) -> None:
        self.random = np.random.default_rng(seed)
        self.model = model
        self.device = DirectDevice(model)
        settings = PrefixCacheSettings(every_tokens=120, spacing_tokens=24)
        self.resident = direct_resident(self.device, frozenset({TURN_END}), CHUNK, settings)
        assert self.resident.prefix is not None
        self.cache = self.resident.prefix
        self.cache.budget = budget_bytes
        self.prompts: list[list[int]] = [self._turn(60)]

    async def cold(self, prompt: list[int], answer: int) -> Asked:
        """From an empty cache that keeps nothing, on a sequence of its own."""
        cache = self.cache
        empty = PrefixCache(cache.settings, 0, CHUNK, cache.turn_ends, cache.kv_bytes, cache.state_bytes)
        self.device.sequence = Sequence(1)
        found = await self._ask(dataclasses.replace(self.resident, prefix=empty), prompt, answer, None)
        self.device.sequence = Sequence(0)
        assert found is not None
        assert found.reused == 0
        return found

    async def warm(self, prompt: list[int], answer: int, leaves_after: int | None = None) -> Asked | None:
        return await self._ask(self.resident, prompt, answer, leaves_after)

    async def _ask(self, resident: Resident, prompt: list[int], answer: int, leaves_after: int | None) -> Asked | None:
        steps = Steps(resident)
        prefill = Prefill(resident, steps, _log)
        chunks = iter(range(10_000))

        def before_each() -> None:
            if next(chunks) == leaves_after:
                raise LeftEarly("left")

        try:
            reply = await prefill.run(prompt, CHUNK, before_each)
        except LeftEarly:
            return None
        first = steps.row(reply).copy()
        tokens = [int(first.argmax())]
        while len(tokens) < answer:
            steps.post(tokens[-1], 1 - reply.slot)
            reply = await steps.logits()
            tokens.append(int(steps.row(reply).argmax()))
        return Asked(first, tokens, prefill.reused)

    def close(self) -> None:
        """Forget everything; the model stays."""
        held = self.model.drop_blocks(range(1, self.cache.next_block()))
        assert held == self.cache.tree.nbytes
        self.model.clear(0)
        self.model.clear(1)
        self.device.slots.close()

    def next_prompt(self) -> list[int]:
        """An earlier prompt again, gone on with, cut somewhere and gone on with, or a new one."""
        random = self.random
        base = self.prompts[int(random.integers(len(self.prompts)))]
        kind = random.integers(10)
        if kind == 0:
            base = self._turn(int(random.integers(20, 150)))
        elif kind < 4:
            base = base[: int(random.integers(1, len(base) + 1))]
        if kind or len(base) < 30:
            for _ in range(int(random.integers(1, 4))):
                base = base + self._turn(int(random.integers(2, 160)))
        prompt = base[: self.model.context_length - 40]
        self.prompts.append(prompt)
        self.prompts = self.prompts[-12:]
        return prompt

    def _turn(self, length: int) -> list[int]:
        ids = self.random.integers(4, self.model.vocab_size, length).tolist()
        return [*map(int, ids), TURN_END]


async def compare(talk: Conversations, rounds: int, check: Callable[[Asked, Asked], None]) -> int:
    """`rounds` prompts, now and then left in the middle; returns how many tokens were reused."""
    reused = 0
    for _ in range(rounds):
        prompt = talk.next_prompt()
        if talk.random.integers(6) == 0:
            await talk.warm(prompt, 1, leaves_after=int(talk.random.integers(0, 4)))
            continue
        found = await talk.warm(prompt, 3)
        assert found is not None
        reused += found.reused
        assert found.reused < len(prompt)
        check(found, await talk.cold(prompt, 3))
    return reused
