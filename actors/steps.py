"""Steps: the jobs of one session on its device, one in flight at a time. Owned by the session that holds the lock."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from neuron.actors.device.jobs import ClearKv, ForwardLogits, Logits, Sequence
from neuron.actors.ports import PendingReply
from neuron.actors.resident import Resident
from neuron.runtime.errors import NeuronError, ProtocolError

#: One sequence per model for now; jobs carry the handle all the same.
SEQUENCE = Sequence(0)


class Steps:
    """`held`: positions the device has been given. A reply is used only when slot, stamp and position all fit."""

    def __init__(self, resident: Resident) -> None:
        self.held = 0
        self._resident = resident
        self._stamp = 0
        self._outstanding: PendingReply | None = None

    async def prefill(self, prompt: list[int], chunk: int, before_each: Callable[[], None]) -> Logits:
        """Clears what the sequence holds, then runs the prompt in chunks; the last one gives logits.

        `before_each` may raise to end the prefill between two chunks.
        """
        handle = self._resident.handle
        await self._resident.device.call(lambda job: ClearKv(job, handle, SEQUENCE))
        tokens = np.asarray(prompt, dtype="<i4")
        last = len(tokens) - 1 - (len(tokens) - 1) % chunk
        for begin in range(0, last, chunk):
            before_each()
            self._post(tokens[begin : begin + chunk], None)
            await self._take()
        before_each()
        self._post(tokens[last:], 0)
        return await self.logits()

    def post(self, token_id: int, slot: int) -> None:
        """Send the next decode step on its way; its logits go to `slot`."""
        self._post(np.array([token_id], dtype="<i4"), slot)

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
        resident, position = self._resident, self.held
        stamp = self._stamp = resident.next_stamp()
        self._outstanding = resident.device.post(
            lambda job: ForwardLogits(job, resident.handle, SEQUENCE, tokens.tobytes(), position, slot, stamp)
        )
        self.held += len(tokens)

    async def _take(self) -> object:
        """The reply of the job in flight, which stays in flight when this task is cancelled while it waits."""
        assert self._outstanding is not None
        try:
            reply = await self._outstanding.reply()
        except NeuronError:
            self._outstanding = None
            raise
        self._outstanding = None
        return reply
