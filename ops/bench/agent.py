"""`python -m ops.bench.agent`: first token of each turn of an agent on one model file, beside llama.cpp's own reuse.

Token ids are random, as the weights of the hybrid shape are; the jobs are the daemon's, done in this process.
"""

import dataclasses
import resource
import sys
import time
from pathlib import Path
from statistics import median

import anyio
import click
import msgspec
import numpy as np

from neuron.actors.prefix.prefill import Prefill
from neuron.actors.settings import PrefixCacheSettings
from neuron.actors.steps import Steps
from neuron.kernels.engine import DeviceModel, LoadSpec
from neuron.kernels.load import load_model
from neuron.kernels.threads import default_threads
from neuron.runtime.logs import configure_logging, get_logger
from ops.bench.direct import DirectDevice, direct_resident
from ops.bench.llama_cpp_engine import LlamaCpp, has_llama_cpp

_TURN_END = 1
_CHUNK = 512
#: Random ids are between these.
_IDS = (100, 40_000)
#: What a template writes after the last turn: it is another one in the next prompt.
_TAIL = [2, 3, 4, 5]
_log = get_logger(__name__)


class Turn(msgspec.Struct, frozen=True):
    """Seconds. `alone`: the tokens that were computed, with nothing before them. `peer` and its reuse, if asked."""

    tokens: int
    reused: int
    known: int
    warm: float
    alone: float
    restore: float
    cold: float | None
    peer: float | None
    peer_reused: int


class Agent:
    """Our side. `cold` and `alone` run on a sequence of their own, with an empty cache."""

    def __init__(self, model: DeviceModel, budget_mb: int) -> None:
        self.device = DirectDevice(model)
        settings = PrefixCacheSettings(budget_mb=budget_mb)
        self.resident = direct_resident(self.device, frozenset({_TURN_END}), _CHUNK, settings)
        assert self.resident.prefix is not None
        self.cache = self.resident.prefix
        self._without = dataclasses.replace(self.resident, prefix=None)

    async def warm(self, prompt: list[int]) -> tuple[float, int]:
        return await self._run(self.resident, prompt)

    async def without(self, prompt: list[int]) -> float:
        self.device.sequence = type(self.device.sequence)(1)
        seconds, _ = await self._run(self._without, prompt)
        self.device.model.clear(1)
        self.device.sequence = type(self.device.sequence)(0)
        return seconds

    async def _run(self, resident: object, prompt: list[int]) -> tuple[float, int]:
        steps = Steps(resident)  # type: ignore[arg-type]
        prefill = Prefill(resident, steps, _log)  # type: ignore[arg-type]
        start = time.perf_counter()
        await prefill.run(prompt, _CHUNK, lambda: None)
        return time.perf_counter() - start, prefill.reused


def sizes(turns: int, tokens: int, first: int) -> list[int]:
    """New tokens of each turn: `first` of the first one (0: as many as of any other), the rest in equal parts."""
    if not first:
        return [tokens // turns] * turns
    return [first, *[(tokens - first) // (turns - 1)] * (turns - 1)]


async def measure(
    agent: Agent, peer: LlamaCpp | None, new: list[int], *, cold: bool, other: bool, ids: tuple[int, int] = _IDS
) -> list[Turn]:
    """`other`: another conversation takes the sequence before each turn, so that all rows are copied back."""
    chance = np.random.default_rng(0)
    history: list[int] = []
    found: list[Turn] = []
    for number, size in enumerate(new):
        known = len(history)
        history += [*chance.integers(*ids, size - 1).tolist(), _TURN_END]
        prompt = history + _TAIL
        if other and number:
            await agent.warm(chance.integers(*ids, 600).tolist())
        before = agent.cache.counters.restore_ms
        warm, reused = await agent.warm(prompt)
        restore = (agent.cache.counters.restore_ms - before) / 1e3
        # Of the first turn that is what was just measured.
        alone = await agent.without(prompt[reused:]) if number else warm
        beside = peer.turn(prompt, len(_TAIL)) if peer is not None else (None, 0)
        from_nothing = await agent.without(prompt) if cold else None
        found.append(Turn(len(prompt), reused, known, warm, alone, restore, from_nothing, *beside))
        _print(number + 1, found[-1])
    return found


def _print(number: int, turn: Turn) -> None:
    line = f"turn {number:3d}  prompt {turn.tokens:6d}  reused {turn.reused:6d}  first token {turn.warm * 1e3:8.1f} ms"
    line += f"  (restore {turn.restore * 1e3:6.1f}, new tokens alone {turn.alone * 1e3:8.1f}"
    if turn.cold is not None:
        line += f", cold {turn.cold * 1e3:9.1f}"
    if turn.peer is not None:
        line += f", llama.cpp {turn.peer * 1e3:9.1f} reusing {turn.peer_reused}"
    click.echo(line + f")  resident {_resident_mb()} MiB")


def _resident_mb() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() >> 20


def _report(found: list[Turn], agent: Agent) -> None:
    later = found[1:]
    reused = sum(turn.reused for turn in later) / sum(turn.known for turn in later)
    click.echo(f"reuse of what was known: {reused:.2%}")
    click.echo(f"first token over new tokens alone: x{median(turn.warm / turn.alone for turn in later):.2f}")
    if all(turn.cold is not None for turn in later):
        click.echo(f"cold over warm: x{median((turn.cold or 0) / turn.warm for turn in later):.2f}")
    if all(turn.peer is not None for turn in later):
        click.echo(f"llama.cpp over neuron: x{median((turn.peer or 0) / turn.warm for turn in later):.2f}")
    figures = agent.cache.figures()
    click.echo(f"kept {figures.bytes_used >> 20} of {figures.bytes_budget >> 20} MiB, {figures.evictions} evictions")


@click.command()
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@click.option("--turns", default=12, show_default=True)
@click.option("--tokens", default=8192, show_default=True, help="Of the last prompt.")
@click.option("--first", default=0, help="Of the first turn, which a session begins with; the others share the rest.")
@click.option("--budget-mb", default=2048, show_default=True)
@click.option("--threads", default=0, help="All cores by default.")
@click.option("--cold/--no-cold", default=False, help="Also compute each whole prompt.")
@click.option("--other/--no-other", default=False, help="Another conversation before each turn.")
@click.option("--llama-python", default=sys.executable, help="Interpreter that has llama-cpp-python.")
@click.option("--peer/--no-peer", default=True)
def main(
    model: Path,
    turns: int,
    tokens: int,
    first: int,
    budget_mb: int,
    threads: int,
    cold: bool,
    other: bool,
    llama_python: str,
    peer: bool,
) -> None:
    """Measure MODEL, a GGUF file."""
    configure_logging("warning", "json")
    count = threads or default_threads()
    context = tokens + 1024
    loaded = load_model(LoadSpec("gguf", (model,), context), "cpu", lambda stage, done: None, threads=count)
    beside = LlamaCpp(llama_python, model, context, count) if peer and has_llama_cpp(llama_python) else None
    agent = Agent(loaded, budget_mb)

    async def run() -> list[Turn]:
        return await measure(agent, beside, sizes(turns, tokens, first), cold=cold, other=other)

    try:
        _report(anyio.run(run), agent)
    finally:
        if beside is not None:
            beside.close()
        loaded.close()


if __name__ == "__main__":
    main()
