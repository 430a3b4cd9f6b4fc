"""The canary: a short greedy continuation taken at load and asked for again after every fault that a device survived.

A device that computes garbage without an error gives another continuation. Used by loading and by sessions, always
under the model's lock (or before the model is served).
"""

import numpy as np

from neuron.actors.device.jobs import ArchHandle, ClearKv, ForwardLogits, Logits, Probe, Sequence
from neuron.actors.ports import DevicePort
from neuron.runtime.errors import ProtocolError
from neuron.runtime.shm import SlotSegment

PROMPT_TOKENS = 16
STEPS = 8
_SEQUENCE = Sequence(0)
#: Ids of the prompt are spread over the vocabulary, so that many rows of the embedding take part.
_STRIDE = 7919


class Canary:
    """`expected` is what the fresh model said; scripts have none, for it would fire their faults."""

    def __init__(
        self, device: DevicePort, handle: ArchHandle, slots: SlotSegment, vocab_size: int, expected: tuple[int, ...]
    ) -> None:
        self._device = device
        self._handle = handle
        self._slots = slots
        self._vocab_size = vocab_size
        self.expected = expected

    @classmethod
    async def take(cls, device: DevicePort, handle: ArchHandle, slots: SlotSegment, vocab_size: int) -> "Canary":
        """Ask a model that was just loaded. Raises NeuronError."""
        canary = cls(device, handle, slots, vocab_size, ())
        canary.expected = await canary._sing()
        return canary

    async def holds(self) -> bool:
        """Whether the model still says the same. Raises NeuronError when the device fails at it."""
        return await self._sing() == self.expected

    async def _sing(self) -> tuple[int, ...]:
        await self._clear()
        tokens = np.arange(1, PROMPT_TOKENS + 1, dtype=np.int64) * _STRIDE % self._vocab_size
        said: list[int] = []
        position = 0
        for step in range(STEPS):
            said.append(await self._next(tokens.astype("<i4"), position, -1000 - step))
            position += len(tokens)
            tokens = np.array(said[-1:])
        await self._clear()
        return tuple(said)

    async def _next(self, tokens: np.ndarray[tuple[int], np.dtype[np.int32]], position: int, stamp: int) -> int:
        data = tokens.tobytes()
        reply = await self._device.call(
            lambda job: ForwardLogits(job, self._handle, _SEQUENCE, data, position, 0, stamp)
        )
        if not isinstance(reply, Logits):
            raise ProtocolError("The device process answered the canary with something else.")
        return int(self._slots.stamped_row(0, stamp)[: self._vocab_size].argmax())

    async def _clear(self) -> None:
        await self._device.call(lambda job: ClearKv(job, self._handle, _SEQUENCE))


async def still_sound(device: DevicePort, canary: Canary | None) -> bool:
    """After a fault that the process survived: does the device still compute right, and the model still say the same?

    Raises NeuronError when the probe itself fails; the process has ended then.
    """
    await device.call(Probe)
    return canary is None or await canary.holds()
