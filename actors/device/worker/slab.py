"""The slab: models of one device process under the handles that the daemon chose, each with its logits slots."""

from dataclasses import dataclass

from neuron.actors.device.worker.classify import RequestFault
from neuron.actors.device.worker.platform import Platform
from neuron.kernels.engine import DeviceModel
from neuron.runtime.shm import SlotSegment


@dataclass(slots=True)
class Resident:
    model: DeviceModel
    slots: SlotSegment | None = None


class Slab:
    """Not thread safe: the job loop's own."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._residents: dict[int, Resident] = {}

    def __len__(self) -> int:
        return len(self._residents)

    def get(self, handle: int) -> Resident:
        """Raises RequestFault for a handle that names nothing (any more)."""
        resident = self._residents.get(handle)
        if resident is None:
            raise RequestFault("internal_error", f"handle {handle} names no model of this process")
        return resident

    def check_free(self, handle: int) -> None:
        if handle in self._residents:
            raise RequestFault("internal_error", f"handle {handle} is in use")

    def put(self, handle: int, model: DeviceModel) -> None:
        self.check_free(handle)
        self._residents[handle] = Resident(model)

    def attach(self, handle: int, name: str, rows: int, row_bytes: int) -> None:
        """Map the logits segment of a model. Raises RequestFault for a row of another length, ProtocolError."""
        resident = self.get(handle)
        if row_bytes != resident.model.vocab_size * 4:
            raise RequestFault("internal_error", f"rows of {row_bytes} bytes for {resident.model.vocab_size} logits")
        slots = SlotSegment.attach(name, rows, row_bytes)
        try:
            self._platform.pin(slots)
        except BaseException:
            slots.close()
            raise
        self._detach(resident)
        resident.slots = slots

    def drop(self, handle: int) -> None:
        """Forget a model; nothing happens when the handle is unknown."""
        resident = self._residents.pop(handle, None)
        if resident is not None:
            self._detach(resident)
            resident.model.close()

    def clear(self) -> None:
        for handle in list(self._residents):
            self.drop(handle)

    def _detach(self, resident: Resident) -> None:
        slots, resident.slots = resident.slots, None
        if slots is not None:
            self._platform.unpin(slots)
            slots.close()
