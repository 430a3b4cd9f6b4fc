"""Prefill of one prompt: go back to what is kept of it, compute the rest, keep what will be wanted again.

Used by the session that holds the model's lock. Keeping and going back never fail a request on their own.
"""

import time
from collections.abc import Callable

import numpy as np

from neuron.actors.device.jobs import DropBlocks, Logits, RestorePrefix, SaveRows, SaveState
from neuron.actors.errors import InsufficientVram
from neuron.actors.images.prompt import PromptImages
from neuron.actors.prefix.cache import PrefixCache, Walk
from neuron.actors.prefix.cuts import grid
from neuron.actors.prefix.recent import Difference
from neuron.actors.resident import Resident
from neuron.actors.steps import SEQUENCE, Steps
from neuron.runtime.errors import InternalError
from neuron.runtime.logs import Logger

#: What a device process answers when it could not do a job and is well otherwise.
_REFUSALS = (InternalError, InsufficientVram)
_SHOWN_CHARACTERS = 20


class Prefill:
    """`reused`: tokens that were not computed, known once the prompt's first chunk is on its way."""

    def __init__(self, resident: Resident, steps: Steps, log: Logger) -> None:
        self.reused = 0
        self._resident = resident
        self._cache = resident.prefix
        self._steps = steps
        self._log = log

    async def run(
        self,
        prompt: list[int],
        chunk: int,
        before_each: Callable[[], None],
        images: PromptImages | None = None,
    ) -> Logits:
        """The logits after `prompt`. `before_each` may raise to end the prefill between two chunks."""
        steps, cache, ids = self._steps, self._cache, np.asarray(prompt, dtype="<i4")
        if cache is None:
            await steps.cut(0)
            return await steps.prefill(ids, grid(len(prompt), chunk), before_each, images=images)
        walk = cache.open(prompt if images is None else images.identity(prompt))
        try:
            await self._go_back(cache, walk)
            self.reused = walk.start
            self._tell(walk)
            return await steps.prefill(ids, walk.cuts, before_each, lambda: self._keep(cache, walk), images)
        finally:
            cache.closed()

    # -- going back ----------------------------------------------------------------------------

    async def _go_back(self, cache: PrefixCache, walk: Walk) -> None:
        """The sequence holds the first `walk.start` tokens; all that stood in the way is given up."""
        steps, begun = self._steps, time.monotonic()
        try:
            if walk.rows or walk.state is not None:
                await self._restore(walk)
            else:
                await steps.cut(walk.start)
            if steps.held != walk.start:
                await self._begin_anew(cache, walk, "the sequence was gone")
        except _REFUSALS as error:
            await self._begin_anew(cache, walk, f"{error.code}: {error.__cause__ or error.message}")
        cache.begun(walk, (time.monotonic() - begun) * 1e3)

    async def _restore(self, walk: Walk) -> None:
        rows = tuple(node.rows for node in walk.rows)
        state = walk.state.state if walk.state is not None else 0
        handle, keep = self._steps.handle, walk.keep
        self._steps.held = await self._steps.ask(lambda job: RestorePrefix(job, handle, SEQUENCE, keep, rows, state))

    async def _begin_anew(self, cache: PrefixCache, walk: Walk, why: str) -> None:
        self._log.warning("prefix cache: restore failed", tokens=walk.start, reason=why)
        await self._drop(cache.abandon(walk))
        await self._steps.cut(0)

    def _tell(self, walk: Walk) -> None:
        if walk.start:
            self._log.info(
                "prefix cache: hit", reused_tokens=walk.start, prompt_tokens=len(walk.prompt), copied=len(walk.rows)
            )
        if walk.difference is not None:
            self._tell_difference(walk.difference, walk.start)

    def _tell_difference(self, found: Difference, reused: int) -> None:
        """A client that changes the head of its prompt pays for all of it: it is told where."""
        self._log.warning(
            "prefix cache: the prompt differs from an earlier one",
            position=found.position,
            earlier_tokens=found.earlier_length,
            reused_tokens=reused,
        )
        self._log.debug(
            "prefix cache: what differs",
            position=found.position,
            was=self._shown(found.was),
            now=self._shown(found.now),
        )

    def _shown(self, token: int | None) -> str | None:
        if token is None or token < 0:
            return None
        return self._resident.text.tokenizer.token_bytes(token).decode("utf-8", "replace")[:_SHOWN_CHARACTERS]

    # -- keeping -------------------------------------------------------------------------------

    async def _keep(self, cache: PrefixCache, walk: Walk) -> None:
        """After a chunk: keep its rows, and its state where one is wanted."""
        cache.computed(walk)
        if not walk.keeps:
            return
        try:
            while walk.keeps and (missing := cache.missing(walk)) is not None:
                await self._keep_rows(cache, walk, *missing)
            if walk.keeps and cache.needs_state and self._steps.held in walk.wanted_states:
                await self._keep_state(cache, walk)
        except _REFUSALS as error:
            walk.keeps = False
            self._log.warning("prefix cache: not kept", position=self._steps.held, reason=error.code)

    async def _keep_rows(self, cache: PrefixCache, walk: Walk, key: bytes, begin: int, end: int) -> None:
        block, handle = cache.next_block(), self._steps.handle
        if not await self._make_room(cache, (end - begin) * cache.kv_bytes):
            walk.keeps = False
            return
        nbytes = await self._steps.ask(lambda job: SaveRows(job, handle, SEQUENCE, block, begin, end))
        cache.kept_rows(walk, key, end, block, nbytes)

    async def _keep_state(self, cache: PrefixCache, walk: Walk) -> None:
        node, block, handle = cache.node_at(walk, self._steps.held), cache.next_block(), self._steps.handle
        if node is None or node.state or not await self._make_room(cache, cache.state_bytes):
            return
        nbytes = await self._steps.ask(lambda job: SaveState(job, handle, SEQUENCE, block))
        cache.tree.add_state(node, block, nbytes)

    async def _make_room(self, cache: PrefixCache, nbytes: int) -> bool:
        dropped, fits = cache.room_for(nbytes)
        await self._drop(dropped)
        return fits

    async def _drop(self, blocks: list[int]) -> None:
        if blocks:
            handle = self._steps.handle
            await self._steps.ask(lambda job: DropBlocks(job, handle, tuple(blocks)))
