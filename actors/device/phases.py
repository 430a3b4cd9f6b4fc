"""Kinds of jobs and the phases that errors, records and logs name. Shared by both ends of the link."""

from neuron.actors.device import jobs
from neuron.actors.device.jobs import Job

LOADS = (jobs.LoadDense, jobs.LoadGguf, jobs.LoadShard, jobs.LoadScripted)
FORWARDS = (jobs.ForwardLogits, jobs.ForwardLogitsWithImages)

_TOKEN_BYTES = 4
_OTHERS: dict[type, str] = {
    jobs.Hello: "start",
    # The daemon's own look at the figures, now and then: no request or load is at work.
    jobs.QueryVram: "idle",
    jobs.EncodeImage: "vision",
    jobs.Drop: "unload",
    jobs.Shutdown: "unload",
}


def phase_of(job: Job | None) -> str:
    """load, prefill, decode, vision, start, unload or control; "idle" without a job that somebody waits for.

    A single token whose logits are wanted counts as decode, whatever it was for.
    """
    if job is None:
        return "idle"
    if isinstance(job, LOADS):
        return "load"
    if isinstance(job, FORWARDS):
        return "decode" if job.slot is not None and len(job.tokens) == _TOKEN_BYTES else "prefill"
    return _OTHERS.get(type(job), "control")
