"""Steps: the jobs of one session on its device, one in flight at a time. Owned by the session that holds the lock."""

import struct
from collections.abc import Awaitable, Callable

import numpy as np
import numpy.typing as npt

from neuron.actors.device.jobs import ArchHandle, ClearKv, Done, ForwardLogits, Logits, Sequence
from neuron.actors.images.feed import ImageFeed
from neuron.actors.images.prompt import PromptImages
from neuron.actors.ports import BuildJob, PendingReply
from neuron.actors.prefix.cuts import Ids
from neuron.actors.resident import Resident
from neuron.runtime.errors import NeuronError, ProtocolError

#: One sequence per model for now; jobs carry the handle all the same.
SEQUENCE = Sequence(0)
_TOKEN = struct.Struct("<i")


class Steps:
    """`held`: positions the device has been given. A reply is used only when slot, stamp and position all fit."""

    def __init__(self, resident: Resident) -> None:
        self.held = 0
        #: A job failed: what the sequence holds is not known.
        self.broken = False
        self._resident = resident
        self._stamp = 0
        self._outstanding: PendingReply | None = None
        #: Set while a prompt with images is run.
        self._feed: ImageFeed | None = None

    async def prefill(
        self,
        prompt: Ids,
        cuts: list[int],
        before_each: Callable[[], None],
        after_each: Callable[[], Awaitable[None]] | None = None,
        images: PromptImages | None = None,
    ) -> Logits:
        """Runs what follows the `held` tokens of `prompt`, a chunk up to each of `cuts`; the rest gives logits.

        `before_each` may raise to end the prefill between two chunks. `after_each` runs its own jobs after a chunk.
        """
        self._feed = None if images is None else ImageFeed(images, self._resident, SEQUENCE)
        for end in cuts:
            before_each()
            await self._encode(end, before_each)
            self._post(prompt[self.held : end], None)
            await self._take()
            if after_each is not None:
                await after_each()
        before_each()
        await self._encode(len(prompt), before_each)
        self._post(prompt[self.held :], 0)
        self._feed = None
        return await self.logits()

    async def _encode(self, end: int, before_each: Callable[[], None]) -> None:
        """Images that the chunk up to `end` touches, one job each; `before_each` as between chunks."""
        feed = self._feed
        if feed is None:
            return
        for index in feed.waiting(self.held, end):
            build, pixels = feed.encode(index)
            try:
                places = await self.ask(build)
            finally:
                pixels.close()
            feed.check(index, places)
            before_each()

    async def cut(self, keep: int) -> None:
        """Hold the first `keep` tokens only, or none when the device cannot do that: see `held`."""
        value = await self.ask(lambda job: ClearKv(job, self.handle, SEQUENCE, keep))
        if value != keep:
            await self.ask(lambda job: ClearKv(job, self.handle, SEQUENCE))
            keep = 0
        self.held = keep

    async def ask(self, build: BuildJob) -> int:
        """Run a job that Done answers; returns the number that it carries."""
        self._outstanding = self._resident.device.post(build)
        reply = await self._take()
        if not isinstance(reply, Done):
            raise ProtocolError("The device process answered with something else than was asked.")
        return reply.value

    @property
    def handle(self) -> ArchHandle:
        return self._resident.handle

    def post(self, token_id: int, slot: int) -> None:
        """Send the next decode step on its way; its logits go to `slot`."""
        self._send(_TOKEN.pack(token_id), 1, slot)

    async def logits(self) -> Logits:
        """The answer of the step in flight. Raises ProtocolError when the slot holds anything else."""
        reply = await self._take()
        if (
            not isinstance(reply, Logits)
            or reply.stamp != self._stamp
            or self._resident.slots.stamp(reply.slot) != self._stamp
            or reply.position != self.held
        ):
            raise ProtocolError("The device process answered with logits of another step.")
        return reply

    def row(self, reply: Logits) -> npt.NDArray[np.float32]:
        """Valid until the next step but one is posted."""
        return self._resident.slots.row(reply.slot)

    async def drain(self) -> None:
        """Wait until nothing is in flight any more. Raises the error of the job that was."""
        if self._outstanding is not None:
            await self._take()

    def _post(self, tokens: npt.NDArray[np.int32], slot: int | None) -> None:
        self._send(tokens.astype("<i4", copy=False).tobytes(), len(tokens), slot)

    def _send(self, data: bytes, count: int, slot: int | None) -> None:
        """`data`: `count` ids as int32, little-endian."""
        resident, position, feed = self._resident, self.held, self._feed
        stamp = self._stamp = resident.next_stamp()
        build: BuildJob = lambda job: ForwardLogits(job, resident.handle, SEQUENCE, data, position, slot, stamp)  # noqa: E731
        if feed is not None:
            build = feed.step(data, position, position + count, slot, stamp)
        self._outstanding = resident.device.post(build)
        self.held += count

    async def _take(self) -> object:
        """The reply of the job in flight, which stays in flight when this task is cancelled while it waits."""
        assert self._outstanding is not None
        try:
            reply = await self._outstanding.reply()
        except NeuronError:
            self._outstanding = None
            self.broken = True
            raise
        self._outstanding = None
        return reply
