"""Actors: order, answers, bounded mailboxes, and no caller ever left waiting."""

from dataclasses import dataclass
from typing import ClassVar

import anyio
import anyio.lowlevel
import pytest

from neuron.runtime.actor import Actor
from neuron.runtime.errors import (
    AskTimeout,
    InsufficientShm,
    InternalError,
    MailboxFull,
    NeuronError,
    RestartLimit,
    ShuttingDown,
)

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Do:
    what: str
    gate: anyio.Event | None = None


class Recorder(Actor[Do]):
    mailbox_size: ClassVar[int] = 3
    stop_seconds: ClassVar[float] = 0.05

    def __init__(self) -> None:
        super().__init__("recorder")
        self.log: list[str] = []

    async def on_start(self) -> None:
        self.log.append("start")

    async def on_message(self, message: Do) -> object:
        self.log.append(message.what)
        if message.gate is not None:
            await message.gate.wait()
        match message.what:
            case "refuse":
                raise InsufficientShm("No room.")
            case "break":
                raise ValueError("secret detail")
            case "time out":
                raise TimeoutError("its own")
        return message.what.upper()

    async def on_failure(self, error: Exception) -> None:
        self.log.append(f"failure {type(error).__name__}")

    async def on_stop(self) -> None:
        self.log.append("stop")
        if "hang" in self.log:
            await anyio.sleep_forever()
        if "fail" in self.log:
            raise ValueError("in on_stop")


async def _failed(actor: Recorder, message: Do, into: list[NeuronError | str]) -> None:
    try:
        into.append(str(await actor.ask(message, 60)))
    except NeuronError as error:
        into.append(error)


async def test_hooks_and_answers_in_order() -> None:
    actor = Recorder()
    actor.tell(Do("early"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(actor.run_alone)
        assert await actor.ask(Do("a"), 5) == "A"
        with pytest.raises(InsufficientShm):
            await actor.ask(Do("refuse"), 5)
        actor.tell(Do("refuse"))
        assert await actor.ask(Do("b"), 5) == "B"
        actor.stop()
    assert actor.log == ["start", "early", "a", "refuse", "refuse", "b", "stop"]
    assert actor.stopped


async def test_a_full_mailbox_refuses_at_once() -> None:
    actor = Recorder()
    for _ in range(3):
        actor.tell(Do("x"))
    assert actor.queue_depth == 3
    with pytest.raises(MailboxFull):
        actor.tell(Do("y"))
    with pytest.raises(MailboxFull):
        await actor.ask(Do("y"), 5)
    actor.close(ShuttingDown("end"))


async def test_stop_fails_the_queued_and_finishes_the_current() -> None:
    actor, gate = Recorder(), anyio.Event()
    results: list[NeuronError | str] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(actor.run_alone)
        tasks.start_soon(_failed, actor, Do("current", gate), results)
        await anyio.wait_all_tasks_blocked()
        for name in ("q1", "q2"):
            tasks.start_soon(_failed, actor, Do(name), results)
        await anyio.wait_all_tasks_blocked()
        actor.stop()
        await anyio.wait_all_tasks_blocked()
        assert [type(each) for each in results] == [ShuttingDown, ShuttingDown]
        with pytest.raises(ShuttingDown):
            actor.tell(Do("late"))
        gate.set()
    assert results[2] == "CURRENT"
    assert actor.log == ["start", "current", "stop"]


async def test_cancellation_fails_everyone_and_still_runs_on_stop() -> None:
    actor = Recorder()
    results: list[NeuronError | str] = []
    async with anyio.create_task_group() as callers:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(actor.run_alone)
            for name in ("current", "q1", "q2"):
                callers.start_soon(_failed, actor, Do(name, anyio.Event()), results)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    assert [type(each) for each in results] == [ShuttingDown] * 3
    assert actor.log == ["start", "current", "stop"]


async def test_a_failure_ends_the_run_and_keeps_the_mailbox() -> None:
    """Row 19."""
    actor = Recorder()
    results: list[NeuronError | str] = []
    async with anyio.create_task_group() as callers:
        callers.start_soon(_failed, actor, Do("break"), results)
        callers.start_soon(_failed, actor, Do("after"), results)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(ValueError, match="secret detail"):
            await actor.run()
        await anyio.wait_all_tasks_blocked()
        (error,) = results
        assert isinstance(error, InternalError)
        assert "secret" not in error.message
        assert isinstance(error.__cause__, ValueError)
        assert actor.queue_depth == 1
        callers.start_soon(actor.run)
        await anyio.wait_all_tasks_blocked()
        assert results[1] == "AFTER"
        actor.stop()
    assert actor.log == ["start", "break", "failure ValueError", "start", "after", "stop"]


async def test_the_first_cause_wins() -> None:
    actor = Recorder()
    results: list[NeuronError | str] = []
    async with anyio.create_task_group() as callers:
        callers.start_soon(_failed, actor, Do("x"), results)
        await anyio.wait_all_tasks_blocked()
        actor.close(RestartLimit("first"))
        actor.close(ShuttingDown("second"))
    assert [type(each) for each in results] == [RestartLimit]
    with pytest.raises(RestartLimit):
        actor.tell(Do("y"))


async def test_a_caller_that_leaves_takes_its_message_with_it() -> None:
    actor, gate = Recorder(), anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(actor.run_alone)
        tasks.start_soon(actor.ask, Do("current", gate), 60)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(AskTimeout):
            await actor.ask(Do("timed out"), 0)
        async with anyio.create_task_group() as callers:
            callers.start_soon(actor.ask, Do("cancelled"), 60)
            await anyio.wait_all_tasks_blocked()
            assert actor.queue_depth == 1
            callers.cancel_scope.cancel()
        assert actor.queue_depth == 0
        gate.set()
        assert await actor.ask(Do("next"), 60) == "NEXT"
        actor.stop()
    assert actor.log == ["start", "current", "next", "stop"]


async def test_a_late_answer_reaches_nobody_else() -> None:
    """Row 20, for actors."""
    actor, gate = Recorder(), anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(actor.run_alone)
        with pytest.raises(AskTimeout):
            await actor.ask(Do("slow", gate), 0.01)
        gate.set()
        assert await actor.ask(Do("own"), 60) == "OWN"
        actor.stop()


async def test_a_timeout_of_the_actor_itself_is_a_failure_not_a_time_limit() -> None:
    actor = Recorder()
    results: list[NeuronError | str] = []
    async with anyio.create_task_group() as callers:
        callers.start_soon(_failed, actor, Do("time out"), results)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(TimeoutError):
            await actor.run()
    assert isinstance(results[0], InternalError)


@pytest.mark.parametrize("how", ["hang", "fail"])
async def test_a_bad_stop_hook_holds_nobody_up(how: str) -> None:
    actor = Recorder()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(actor.run_alone)
        await actor.ask(Do(how), 5)
        tasks.cancel_scope.cancel()
    assert actor.log[-1] == "stop"


async def test_an_actor_runs_once_at_a_time() -> None:
    actor = Recorder()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(actor.run)
        await anyio.lowlevel.checkpoint()
        with pytest.raises(RuntimeError):
            await actor.run()
        actor.stop()
