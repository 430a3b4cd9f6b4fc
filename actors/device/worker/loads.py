"""The load jobs of a device process: which builder makes the model, and how its progress is told."""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from neuron.actors.device import jobs
from neuron.actors.device.jobs import Loaded, Progress, Reply
from neuron.actors.device.worker.failpoints import Hit
from neuron.actors.device.worker.groups import Membership, WatchedCollectives
from neuron.kernels.engine import DeviceModel, LoadSpec

LoadJob = jobs.LoadDense | jobs.LoadGguf | jobs.LoadShard | jobs.LoadScripted
Send = Callable[[Reply], None]

PROGRESS_SECONDS = 0.1
"""Progress is sent at most this often, apart from a new stage and the end of one."""


def group_of(job: LoadJob) -> int:
    """The number of the group that a load belongs to; 0: none."""
    return job.group if isinstance(job, jobs.LoadShard | jobs.LoadScripted) else 0


def collectives_for(membership: Membership, job: LoadJob, hit: Hit) -> WatchedCollectives | None:
    """What a shard's model computes with; scripts need nothing."""
    return None if isinstance(job, jobs.LoadScripted) else WatchedCollectives(membership, hit)


def build_model(
    job: LoadJob, device: str, send: Send, step: Callable[[], None], collectives: WatchedCollectives | None = None
) -> DeviceModel:
    """Load what `job` names. `step` is called with each report of progress.

    Libraries are imported here: a process that only ever loads scripts needs no torch.
    Raises LoadError, FormatError, ScriptError, or what the device library raises.
    """
    progress = ProgressReports(job.job, send, step)
    if isinstance(job, jobs.LoadScripted):
        from neuron.actors.device.worker.scripted import load_scripted

        def fired(digest: str, turn: int) -> None:
            send(jobs.ScriptFaultFired(0, digest, turn))

        return load_scripted(Path(job.path), job.fired, progress, fired)

    from neuron.kernels.load import load_model
    from neuron.kernels.threads import default_threads

    if collectives is None:
        return load_model(_spec(job), device, progress)
    # The ranks of a CPU group share the cores.
    threads = max(1, default_threads() // collectives.world_size)
    spec = msgspec.structs.replace(_spec(job), rank=collectives.rank, world_size=collectives.world_size)
    return load_model(spec, device, progress, threads=threads, group=collectives)


def _spec(job: jobs.LoadDense | jobs.LoadGguf | jobs.LoadShard) -> LoadSpec:
    files = tuple(Path(file) for file in job.files)
    if isinstance(job, jobs.LoadGguf):
        projector = None if job.projector is None else Path(job.projector)
        return LoadSpec("gguf", files, job.max_context, projector=projector)
    return LoadSpec("safetensors", files, job.max_context, Path(job.config), job.quant)


def loaded(job: int, model: DeviceModel) -> Loaded:
    memory = model.memory
    return Loaded(
        job,
        model.vocab_size,
        model.context_length,
        memory.weights,
        memory.kv_per_token,
        memory.state,
        memory.workspace,
        model.summary,
    )


class ProgressReports:
    """Sends a load's progress, thinned; `step` is told of every report."""

    def __init__(self, job: int, send: Callable[[Reply], None], step: Callable[[], None]) -> None:
        self._job = job
        self._send = send
        self._step = step
        self._stage = ""
        self._sent_at = 0.0

    def __call__(self, stage: str, fraction: float) -> None:
        self._step()
        now = time.monotonic()
        if stage != self._stage or fraction >= 1.0 or now - self._sent_at >= PROGRESS_SECONDS:
            self._stage, self._sent_at = stage, now
            self._send(Progress(self._job, stage, min(max(fraction, 0.0), 1.0)))
