"""What loads and sessions need of a device, as protocols; the real ones are device/actor and group/group."""

from collections.abc import Callable
from typing import Protocol

from neuron.actors.daemon import DeviceInfo
from neuron.actors.device.jobs import Job, Progress, Ready, Reply
from neuron.runtime.errors import NeuronError

BuildJob = Callable[[int], Job]
"""Makes a job from the id that the device actor assigns."""


class PendingReply(Protocol):
    """A job on its way."""

    async def reply(self) -> Reply:
        """The job's terminal reply. Raises the NeuronError of a fault, a death or a missed deadline."""


class DevicePort(Protocol):
    """One device and the process that owns it, or several that share a model."""

    async def ensure_started(self) -> Ready: ...

    async def call(
        self,
        build: BuildJob,
        *,
        deadline_s: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Reply: ...

    def post(self, build: BuildJob, *, deadline_s: float | None = None) -> PendingReply: ...

    def info(self) -> DeviceInfo: ...

    def kill(self, reason: str, error: Callable[[], NeuronError]) -> None: ...
