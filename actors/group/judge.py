"""One answer of all ranks' answers: the same for all, or the reason why there is none. Pure."""

from collections.abc import Sequence

import msgspec

from neuron.actors.device import jobs
from neuron.actors.device.jobs import ECHOES, PEER_FAILED, Fault, Job, Reply

#: Jobs whose number is bytes of each rank's own memory: the group's is the sum.
_SUMMED = (jobs.SaveRows, jobs.SaveState, jobs.DropBlocks)


class Divergence(msgspec.Struct, frozen=True):
    """`rank` answered something else than the leader."""

    rank: int
    text: str


def judge(job: Job, answers: Sequence[Reply]) -> Reply | Divergence:
    """`answers` by rank. A Fault of one is the answer of all, the one that caused the others first."""
    faults = [answer for answer in answers if isinstance(answer, Fault)]
    if faults:
        return min(faults, key=_rank_of_fault)
    first = answers[0]
    for rank, answer in enumerate(answers):
        difference = _difference(job, first, answer)
        if difference is not None:
            return Divergence(rank, difference)
    if isinstance(first, jobs.Done) and isinstance(job, _SUMMED):
        return jobs.Done(first.job, sum(answer.value for answer in answers if isinstance(answer, jobs.Done)))
    if isinstance(first, jobs.Loaded):
        return _loaded(first, [answer for answer in answers if isinstance(answer, jobs.Loaded)])
    return first


def _rank_of_fault(fault: Fault) -> int:
    """A cause before an echo of it."""
    if fault.reason == PEER_FAILED:
        return 1
    return 2 if fault.reason.startswith(ECHOES) else 0


def _difference(job: Job, first: Reply, other: Reply) -> str | None:
    """Slots and stamps were compared with the job already."""
    if type(first) is not type(other):
        return f"{type(other).__name__} instead of {type(first).__name__}"
    if isinstance(first, jobs.Logits) and isinstance(other, jobs.Logits) and first.position != other.position:
        return f"position {other.position} instead of {first.position}"
    if isinstance(first, jobs.Done) and isinstance(other, jobs.Done) and not isinstance(job, _SUMMED):
        return None if first.value == other.value else f"{other.value} instead of {first.value}"
    if isinstance(first, jobs.Loaded) and isinstance(other, jobs.Loaded):
        shapes = [(loaded.vocab_size, loaded.context_length) for loaded in (first, other)]
        return None if shapes[0] == shapes[1] else f"a model of {shapes[1]} instead of {shapes[0]}"
    return None


def _loaded(first: jobs.Loaded, all_of_them: Sequence[jobs.Loaded]) -> jobs.Loaded:
    """The leader's, with the bytes of the rank that needs most."""
    return msgspec.structs.replace(
        first,
        weights_bytes=max(loaded.weights_bytes for loaded in all_of_them),
        kv_bytes_per_token=max(loaded.kv_bytes_per_token for loaded in all_of_them),
        state_bytes=max(loaded.state_bytes for loaded in all_of_them),
        workspace_bytes=max(loaded.workspace_bytes for loaded in all_of_them),
        summary=f"{first.summary}; one of {len(all_of_them)} ranks",
    )
