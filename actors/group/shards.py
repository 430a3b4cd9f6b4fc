"""Which ranks of a group get a job, and what each of them is told. Pure."""

from neuron.actors.device import jobs
from neuron.actors.device.jobs import Job, TpHandle
from neuron.actors.errors import TpRequiresSafetensors

LEADER = 0


def ranks_of(job: Job, world_size: int) -> range:
    """Only the leader has logits slots; everything else is done by all, in the same order."""
    return range(1) if isinstance(job, jobs.AttachSlots) else range(world_size)


def shard(job: Job, group: int) -> Job:
    """The job as every rank of `group` gets it: a load becomes the load of a part. Raises TpRequiresSafetensors."""
    match job:
        case jobs.LoadGguf():
            raise TpRequiresSafetensors("Tensor parallelism needs safetensors.", model_id="")
        case jobs.LoadDense():
            handle = TpHandle(job.handle)
            return jobs.LoadShard(job.job, handle, group, job.config, job.files, job.max_context, job.quant)
        case jobs.LoadScripted():
            return jobs.LoadScripted(job.job, job.handle, job.path, job.fired, group)
        case _:
            return job


def mends(job: Job) -> Job | None:
    """What brings the ranks together again when some did `job` and others refused it; None when nothing has to."""
    match job:
        case jobs.SaveRows() | jobs.SaveState():
            return jobs.DropBlocks(0, job.handle, (job.block,))
        case jobs.ForwardLogits() | jobs.ForwardLogitsWithImages() | jobs.RestorePrefix() | jobs.EncodeImage():
            return jobs.ClearKv(0, job.handle, job.sequence)
        case _:
            return None
