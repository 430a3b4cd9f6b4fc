"""Jobs and replies of one device process: matched in order, each to its own caller."""

import asyncio

import anyio
import pytest

from neuron.actors.device import jobs
from neuron.actors.device.job_table import JobTable, PendingReply, ReplyCounters
from neuron.actors.device.jobs import ArchHandle, Done, Fault, Job, Logits, Progress, Sequence
from neuron.actors.errors import NanLogits
from neuron.runtime.errors import ProtocolError, WorkerDied

pytestmark = pytest.mark.anyio


def _forward(job: int, stamp: int = 7, slot: int | None = 1) -> Job:
    return jobs.ForwardLogits(job, ArchHandle(1), Sequence(0), b"\0\0\0\0", 0, slot, stamp)


def _table() -> JobTable:
    return JobTable(ReplyCounters())


def _add(table: JobTable, job: Job | None = None) -> PendingReply:
    made = jobs.Probe(table.next_id()) if job is None else job
    pending = PendingReply(made, 5.0, None)
    table.add(pending)
    return pending


async def test_each_caller_gets_its_own() -> None:
    table = _table()
    first, second = _add(table), _add(table)
    table.deliver(Done(1, 10))
    table.deliver(Done(2, 20))
    assert await second.reply() == Done(2, 20)
    assert await first.reply() == Done(1, 10)
    assert await first.reply() == Done(1, 10)  # It may be asked again.


async def test_a_fault_is_its_typed_error_with_the_workers_words_as_cause() -> None:
    table = _table()
    pending = _add(table)
    table.deliver(Fault(1, "nan", 0, "nan_logits", "secret /path", False))
    with pytest.raises(NanLogits) as caught:
        await pending.reply()
    assert "/path" not in caught.value.message
    assert "/path" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    "reply", [Done(5), Done(0), Done(-1), Done(2), Fault(9, "host", 0, "x", "y", False), Progress(5, "read", 0.5)]
)
async def test_answers_to_jobs_never_given_or_out_of_order_are_protocol_errors(reply: jobs.Reply) -> None:
    table = _table()
    _add(table), _add(table)
    with pytest.raises(ProtocolError):
        table.deliver(reply)


async def test_a_second_answer_is_counted_and_dropped() -> None:
    table = _table()
    _add(table), _add(table)
    table.deliver(Done(1, 1))
    assert table.deliver(Done(1, 2)) is None
    assert table.counters.stale == 1
    assert len(table) == 1


@pytest.mark.parametrize(
    "reply", [Done(1), jobs.Vram(1, 0, 0, 0), Logits(1, 1, 8, 1, 0), Logits(1, 0, 7, 1, 0), Progress(1, "read", 0.1)]
)
async def test_a_step_is_answered_by_its_own_slot_and_stamp_only(reply: jobs.Reply) -> None:
    table = _table()
    _add(table, _forward(table.next_id()))
    with pytest.raises(ProtocolError):
        table.deliver(reply)


async def test_a_chunk_without_slot_is_answered_by_done() -> None:
    table = _table()
    _add(table, _forward(table.next_id(), slot=None))
    with pytest.raises(ProtocolError):
        table.deliver(Logits(1, 1, 7, 1, 0))
    assert table.deliver(Done(1)) is not None


async def test_a_caller_that_left_is_nobody_elses_answer() -> None:
    table = _table()
    first, second = _add(table), _add(table)
    waiting = asyncio.ensure_future(first.reply())
    await anyio.lowlevel.checkpoint()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    table.deliver(Done(1, 1))
    assert table.counters.late == 1
    table.deliver(Done(2, 2))
    assert await second.reply() == Done(2, 2)


async def test_death_reaches_every_caller_with_an_error_of_its_own() -> None:
    table = _table()
    first, second = _add(table), _add(table)
    table.fail_all(lambda: WorkerDied("gone"))
    errors = []
    for pending in (first, second):
        with pytest.raises(WorkerDied) as caught:
            await pending.reply()
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert len(table) == 0


async def test_progress_restarts_the_clock_and_reaches_the_caller() -> None:
    table = _table()
    seen: list[Progress] = []
    pending = PendingReply(jobs.LoadScripted(table.next_id(), ArchHandle(1), "x"), 5.0, seen.append)
    pending.started_at = 0.0
    table.add(pending)
    table.deliver(Progress(1, "read", 0.5))
    assert pending.started_at > 0
    assert [report.fraction for report in seen] == [0.5]
    assert not pending.done


async def test_the_next_jobs_clock_starts_when_it_becomes_the_head() -> None:
    table = _table()
    _add(table)
    second = _add(table)
    second.started_at = 0.0
    table.deliver(Done(1))
    assert second.started_at > 0


async def test_the_limit_of_a_group_s_job_counts_once_every_rank_can_begin() -> None:
    """The second rank's process has another job before it."""
    first, second = _table(), _table()
    before = _add(second)
    here, there = _add(first), _add(second)
    here.peers, there.peers = [there], [here]
    assert here.begun_at is not None
    assert (there.begun_at, here.since) == (None, None)
    second.deliver(Done(before.job.job))
    assert there.begun_at is not None
    assert here.since == there.since == there.begun_at >= here.begun_at


async def test_an_answer_is_told_once() -> None:
    table = _table()
    pending = _add(table)
    told: list[object] = []
    pending.on_answer = told.append
    table.deliver(Done(1, 10))
    pending.settle(lambda: ProtocolError("late"))
    assert told == [Done(1, 10)]
    assert await pending.reply() == Done(1, 10)
