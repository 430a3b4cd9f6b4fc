"""The load jobs of a device process: which builder makes the model, and how its progress is told."""

import time
from collections.abc import Callable
from pathlib import Path

from neuron.actors.device import jobs
from neuron.actors.device.jobs import Loaded, Progress, Reply
from neuron.kernels.engine import DeviceModel, LoadSpec

LoadJob = jobs.LoadDense | jobs.LoadGguf | jobs.LoadScripted
Send = Callable[[Reply], None]

PROGRESS_SECONDS = 0.1
"""Progress is sent at most this often, apart from a new stage and the end of one."""


def build_model(job: LoadJob, device: str, send: Send, step: Callable[[], None]) -> DeviceModel:
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

    return load_model(_spec(job), device, progress)


def _spec(job: jobs.LoadDense | jobs.LoadGguf) -> LoadSpec:
    files = tuple(Path(file) for file in job.files)
    if isinstance(job, jobs.LoadGguf):
        return LoadSpec("gguf", files, job.max_context)
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
