"""The prefix jobs of a device process: what each asks of a model, and the failpoint it passes."""

from neuron.actors.device import jobs
from neuron.kernels.engine import PrefixBlocks

PrefixJob = jobs.SaveRows | jobs.SaveState | jobs.RestorePrefix | jobs.DropBlocks

POINTS: dict[type, str] = {
    jobs.SaveRows: "worker.prefix.save",
    jobs.SaveState: "worker.prefix.save",
    jobs.RestorePrefix: "worker.prefix.restore",
    jobs.DropBlocks: "worker.prefix.drop",
}


def do_prefix_job(model: PrefixBlocks, job: PrefixJob) -> int:
    """The number that Done carries. Raises ValueError for what the model does not hold, OutOfMemory."""
    match job:
        case jobs.SaveRows():
            return model.save_rows(job.sequence, job.block, job.begin, job.end)
        case jobs.SaveState():
            return model.save_state(job.sequence, job.block)
        case jobs.RestorePrefix():
            return model.restore_prefix(job.sequence, job.keep, job.rows, job.state)
        case jobs.DropBlocks():
            return model.drop_blocks(job.blocks)
