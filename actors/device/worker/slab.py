"""The slab: models of one device process under the handles that the daemon chose, each with its logits slots."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from neuron.actors.device.worker.classify import RequestFault
from neuron.actors.device.worker.groups import Membership
from neuron.actors.device.worker.platform import Platform
from neuron.kernels.engine import DeviceModel
from neuron.runtime.shm import SlotSegment

Row = npt.NDArray[np.float32]


@dataclass(slots=True)
class Resident:
    """`membership`: the place in its group of a model that shares its work with other ranks."""

    model: DeviceModel
    membership: Membership | None = None
    slots: SlotSegment | None = None
    #: Where a rank that is not the first has its logits written: nobody reads them.
    _scratch: Row | None = None

    @property
    def leads(self) -> bool:
        """Whether this process's logits are the model's."""
        return self.membership is None or self.membership.rank == 0

    def row(self, slot: int) -> Row:
        """Where the logits of a step go. Raises RequestFault for a slot that is not attached."""
        if not self.leads:
            if self._scratch is None:
                self._scratch = np.zeros(self.model.vocab_size, dtype=np.float32)
            return self._scratch
        if self.slots is None or not 0 <= slot < self.slots.rows:
            raise RequestFault("internal_error", f"slot {slot} is not attached")
        return self.slots.row(slot)


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

    def put(self, handle: int, model: DeviceModel, membership: Membership | None = None) -> None:
        self.check_free(handle)
        self._residents[handle] = Resident(model, membership)

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
