"""Resident: a model that a device process holds right now, and everything the daemon needs to use it."""

from dataclasses import dataclass, field

from neuron.actors.admission import ContextLimits
from neuron.actors.canary import Canary
from neuron.actors.device.jobs import ArchHandle, Loaded
from neuron.actors.images.sight import Sight
from neuron.actors.ports import DevicePort
from neuron.actors.prefix.cache import PrefixCache
from neuron.actors.sources.artifact import ModelArtifact
from neuron.actors.text.build import TextModel
from neuron.runtime.shm import SlotSegment

MIB = 1 << 20


@dataclass(slots=True)
class Resident:
    """Made by loading, owned by the model actor, used by one session at a time."""

    model_id: str
    #: Of all its ranks, in order.
    device_ids: tuple[str, ...]
    device: DevicePort
    handle: ArchHandle
    slots: SlotSegment
    artifact: ModelArtifact
    text: TextModel
    loaded: Loaded
    limits: ContextLimits
    architecture: str
    loaded_at: str
    #: What is kept of earlier prompts; None when that is switched off.
    prefix: PrefixCache | None = None
    #: How it takes images; None when it takes none.
    sight: Sight | None = None
    canary: Canary | None = None
    _stamp: int = field(default=0)

    def next_stamp(self) -> int:
        """A number that no earlier step of this model used."""
        self._stamp += 1
        return self._stamp

    @property
    def vocab_size(self) -> int:
        """Logits that belong to a token: rows past the tokenizer's ids are padding."""
        return min(self.loaded.vocab_size, self.text.tokenizer.vocab_size)

    @property
    def where(self) -> str:
        """Its devices in one word, for the log."""
        return ",".join(self.device_ids)

    @property
    def bytes(self) -> int:
        """What each of its device processes holds of the device's memory for it, the whole KV cache included."""
        loaded = self.loaded
        cache = loaded.kv_bytes_per_token * loaded.context_length
        return loaded.weights_bytes + cache + loaded.state_bytes + loaded.workspace_bytes + self._prefix_bytes

    @property
    def _prefix_bytes(self) -> int:
        """What one process keeps of earlier prompts: in the host's memory, which is the device's on a CPU alone."""
        if self.prefix is None or any(device.startswith("cuda") for device in self.device_ids):
            return 0
        return self.prefix.tree.nbytes // len(self.device_ids)

    @property
    def megabytes(self) -> int:
        """On all its devices together."""
        return self.bytes * len(self.device_ids) // MIB
