"""One answer of many, the cause among the ends, and what the ranks are told."""

import pytest

from neuron.actors.device import deaths, jobs
from neuron.actors.device.job_table import Awaited
from neuron.actors.device.jobs import (
    PEER_FAILED,
    ArchHandle,
    Done,
    Fault,
    Job,
    Loaded,
    Logits,
    Progress,
    Reply,
    Sequence,
)
from neuron.actors.errors import TpRequiresSafetensors
from neuron.actors.group.ends import ECHO_SECONDS, End, Ends
from neuron.actors.group.judge import Divergence, judge
from neuron.actors.group.pending import SlowestProgress
from neuron.actors.group.shards import mends, ranks_of, shard
from neuron.runtime.errors import WorkerDied

H, S = ArchHandle(1), Sequence(0)
STEP = jobs.ForwardLogits(1, H, S, b"\0\0\0\0", 3, 0, 9)
CLEAR = jobs.ClearKv(1, H, S, 4)
SAVE = jobs.SaveRows(1, H, S, 2, 0, 4)
LOAD = jobs.LoadDense(1, H, "config.json", ("a.safetensors",), 128)


def logits(position: int = 4) -> Logits:
    return Logits(1, 0, 9, position, 10)


def fault(reason: str, name: str = "internal_error", *, device: bool = False) -> Fault:
    return Fault(1, "host", 0, name, "text", device, "decode", "", reason)


def loaded(weights: int, vocabulary: int = 10) -> Loaded:
    return Loaded(1, vocabulary, 128, weights, weights // 2, weights // 4, weights // 8, "a model")


@pytest.mark.parametrize(
    ("job", "answers", "expected"),
    [
        (STEP, [logits(), logits()], logits()),
        (CLEAR, [Done(1, 4), Done(5, 4)], Done(1, 4)),
        (SAVE, [Done(1, 100), Done(5, 60)], Done(1, 160)),
        (jobs.DropBlocks(1, H, (2,)), [Done(1, 0), Done(5, 60)], Done(1, 60)),
    ],
)
def test_what_all_say(job: Job, answers: list[Reply], expected: Reply) -> None:
    assert judge(job, answers) == expected


def test_a_loaded_model_needs_what_its_largest_part_needs() -> None:
    found = judge(LOAD, [loaded(80), loaded(160)])
    assert isinstance(found, Loaded)
    assert (found.weights_bytes, found.kv_bytes_per_token, found.state_bytes, found.workspace_bytes) == (
        160,
        80,
        40,
        20,
    )
    assert found.summary == "a model; one of 2 ranks"


@pytest.mark.parametrize(
    ("job", "answers"),
    [
        (STEP, [logits(), logits(5)]),
        (STEP, [logits(), Done(1)]),
        (CLEAR, [Done(1, 4), Done(1, 0)]),
        (LOAD, [loaded(8), loaded(8, 11)]),
    ],
)
def test_what_differs_names_the_rank(job: Job, answers: list[Reply]) -> None:
    found = judge(job, [answers[0], answers[0], answers[1]])
    assert isinstance(found, Divergence)
    assert found.rank == 2


def test_the_fault_that_caused_the_others_is_the_answer() -> None:
    cause, echo, lost = fault("host_error"), fault(PEER_FAILED), fault("gloo_peer_closed", device=True)
    assert judge(STEP, [echo, cause, lost]) is cause
    assert judge(STEP, [lost, echo, logits()]) is echo
    assert judge(STEP, [logits(), fault("nan_logits", "nan_logits")]) == fault("nan_logits", "nan_logits")


def end(rank: int, reason: str = "x", *, echo: bool = False) -> End:
    return End(rank, f"cpu:{rank}", deaths.Death(reason, lambda: WorkerDied("gone"), echo=echo))


def test_an_echo_waits_for_its_cause() -> None:
    ends = Ends()
    assert ends.hear(end(0, "gloo_peer_closed", echo=True), 10.0) is None
    assert ends.doubtful
    cause = end(1, "worker_exited: signal SIGKILL")
    assert ends.hear(cause, 10.2) is cause
    assert ends.hear(end(2), 10.3) is None
    assert ends.decided is cause
    assert not ends.doubtful
    assert cause.public.reason == "worker_exited: signal SIGKILL (rank 1 on cpu:1)"


def test_an_echo_alone_is_the_cause_in_the_end() -> None:
    ends = Ends()
    first = end(2, "gloo_timeout", echo=True)
    ends.hear(first, 10.0)
    ends.hear(end(0, "gloo_timeout", echo=True), 10.1)
    assert ends.overdue(10.0 + ECHO_SECONDS - 0.01) is None
    assert ends.overdue(10.0 + ECHO_SECONDS) is first
    assert ends.overdue(99.0) is None


def test_what_ranks_are_told() -> None:
    assert shard(LOAD, 7) == jobs.LoadShard(1, jobs.TpHandle(1), 7, "config.json", ("a.safetensors",), 128)
    assert shard(jobs.LoadScripted(1, H, "s.json"), 7) == jobs.LoadScripted(1, H, "s.json", (), 7)
    assert shard(STEP, 7) is STEP
    with pytest.raises(TpRequiresSafetensors):
        shard(jobs.LoadGguf(1, H, ("a.gguf",), 128), 7)
    assert list(ranks_of(jobs.AttachSlots(1, H, "n", 2, 40), 4)) == [0]
    assert list(ranks_of(STEP, 4)) == [0, 1, 2, 3]


def test_what_brings_ranks_together_again() -> None:
    assert mends(SAVE) == jobs.DropBlocks(0, H, (2,))
    assert mends(STEP) == mends(jobs.RestorePrefix(1, H, S, 0, (1,), 0)) == jobs.ClearKv(0, H, S)
    assert mends(CLEAR) is None


def test_progress_is_that_of_the_slowest() -> None:
    told: list[Progress] = []
    load = Awaited(LOAD)
    slowest = SlowestProgress(2, told.append, load)
    for rank, stage, fraction in (
        (0, "read", 0.5),
        (1, "read", 0.1),
        (0, "compile", 0.2),
        (1, "read", 0.9),
        (1, "compile", 0.1),
    ):
        slowest.note(rank, Progress(1, stage, fraction))
    assert [(progress.stage, progress.fraction) for progress in told] == [
        ("read", 0.1),
        ("read", 0.1),
        ("read", 0.9),
        ("compile", 0.1),
    ]
    load.abandoned = True
    slowest.note(0, Progress(1, "compile", 1.0))
    assert len(told) == 4
