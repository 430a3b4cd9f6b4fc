"""A device without a process that drives a real model: jobs are done where they are posted. For benches and tests."""

from collections.abc import Callable

import msgspec
import numpy as np

from neuron.actors.admission import ContextLimits
from neuron.actors.device import jobs
from neuron.actors.device.jobs import (
    ArchHandle,
    Done,
    ForwardLogits,
    Job,
    Loaded,
    Logits,
    Progress,
    Ready,
    Reply,
    Sequence,
)
from neuron.actors.device.worker.images import encode_image, forward
from neuron.actors.device.worker.prefixes import POINTS, do_prefix_job
from neuron.actors.ports import BuildJob
from neuron.actors.prefix.budget import prefix_cache
from neuron.actors.resident import Resident
from neuron.actors.settings import LimitSettings, PrefixCacheSettings, Settings
from neuron.kernels.engine import DeviceModel
from neuron.runtime.errors import InternalError, NeuronError
from neuron.runtime.shm import SlotSegment


class DirectPending:
    def __init__(self, answer: Reply | NeuronError) -> None:
        self._answer = answer

    async def reply(self) -> Reply:
        if isinstance(self._answer, NeuronError):
            raise self._answer
        return self._answer


class DirectDevice:
    """`jobs` are those done so far; `before` may raise ValueError to make a job fail."""

    def __init__(self, model: DeviceModel) -> None:
        self.model = model
        self.slots = SlotSegment.create(2, model.vocab_size * 4)
        self.slots.unlink()
        self.jobs: list[Job] = []
        self.before: Callable[[Job], None] = lambda job: None
        #: The sequence that jobs are done on, whichever they name.
        self.sequence = Sequence(0)

    def post(self, build: BuildJob, *, deadline_s: float | None = None) -> DirectPending:
        job = build(len(self.jobs) + 1)
        if not isinstance(job, jobs.DropBlocks):
            job = msgspec.structs.replace(job, sequence=self.sequence)
        self.jobs.append(job)
        try:
            self.before(job)
            return DirectPending(self._do(job))
        except ValueError as error:
            if isinstance(job, ForwardLogits | jobs.ForwardLogitsWithImages | jobs.RestorePrefix):
                self.model.clear(job.sequence)
            failure = InternalError("The device process could not do this.")
            failure.__cause__ = error
            return DirectPending(failure)

    async def call(
        self,
        build: BuildJob,
        *,
        deadline_s: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Reply:
        return await self.post(build).reply()

    def _do(self, job: Job) -> Reply:
        if isinstance(job, ForwardLogits | jobs.ForwardLogitsWithImages):
            tokens = np.frombuffer(job.tokens, "<i4").astype(np.int32)
            row = None if job.slot is None else self.slots.row(job.slot)
            forward(self.model, job, tokens, row)
            if job.slot is None:
                return Done(job.job)
            self.slots.set_stamp(job.slot, job.stamp)
            return Logits(job.job, job.slot, job.stamp, job.position + len(tokens), 1)
        if isinstance(job, jobs.EncodeImage):
            return Done(job.job, encode_image(self.model, job))
        if isinstance(job, jobs.ClearKv):
            return Done(job.job, self.model.clear(job.sequence, job.keep))
        if type(job) in POINTS:
            return Done(job.job, do_prefix_job(self.model, job))  # type: ignore[arg-type]
        raise ValueError(f"{type(job).__name__} is not known here")

    def kill(self, reason: str, error: Callable[[], NeuronError]) -> None:
        raise AssertionError(reason)

    async def ensure_started(self) -> Ready:
        raise AssertionError("there is no process")

    def facts(self) -> Ready | None:
        return None

    def info(self) -> object:
        raise AssertionError("nobody asks")

    def on_death(self, callback: object) -> object:
        return callback

    async def release(self, timeout_s: float) -> None:
        return

    async def stop(self, timeout_s: float) -> None:
        return


def direct_resident(
    device: DirectDevice, turn_ends: frozenset[int], chunk: int, settings: PrefixCacheSettings
) -> Resident:
    """A resident model without text machinery."""
    model = device.model
    memory = model.memory
    loaded = Loaded(0, model.vocab_size, model.context_length, 0, memory.kv_per_token, memory.state, 0, "direct")
    limits = LimitSettings(prefill_chunk_tokens=chunk)
    resident: Resident = Resident(
        model_id="test/direct",
        device_ids=("cpu",),
        device=device,  # type: ignore[arg-type]
        handle=ArchHandle(1),
        slots=device.slots,
        artifact=None,  # type: ignore[arg-type]
        text=None,  # type: ignore[arg-type]
        loaded=loaded,
        limits=ContextLimits(model.context_length, model.context_length, model.context_length),
        architecture="direct",
        loaded_at="",
        prefix=prefix_cache(Settings(prefix_cache=settings, limits=limits), loaded, turn_ends),
    )
    return resident
