"""Supervision: who is restarted, how often, and what happens above when the budget is spent."""

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron.runtime.actor import Actor
from neuron.runtime.errors import InternalError, NeuronError, RestartLimit, ShuttingDown
from neuron.runtime.restarts import RestartBudget
from neuron.runtime.supervisor import Restart, Supervisor

pytestmark = pytest.mark.anyio


class Child:
    """Runs until told how to end; counts its lives."""

    def __init__(self, name: str, journal: list[str]) -> None:
        self.name = name
        self.journal = journal
        self.lives = 0
        self.end = anyio.Event()
        self.how: Exception | None = None
        self.closed_by: NeuronError | None = None

    async def run(self) -> None:
        self.lives += 1
        self.journal.append(f"+{self.name}")
        self.end, self.how = anyio.Event(), None
        try:
            await self.end.wait()
            if self.how is not None:
                raise self.how
        finally:
            self.journal.append(f"-{self.name}")

    def close(self, error: NeuronError) -> None:
        self.closed_by = self.closed_by or error

    async def fail(self, error: Exception | None = None) -> None:
        self.how = error or ValueError(self.name)
        self.end.set()
        await anyio.wait_all_tasks_blocked()

    async def finish(self) -> None:
        self.end.set()
        await anyio.wait_all_tasks_blocked()


def _make(count: int = 3, names: str = "abc") -> tuple[Supervisor, list[Child], list[str]]:
    journal: list[str] = []
    supervisor = Supervisor("top", budget=RestartBudget(count, 60))
    children = [Child(name, journal) for name in names]
    for child in children:
        supervisor.add(child)
    return supervisor, children, journal


async def test_one_for_one_restarts_only_who_failed() -> None:
    supervisor, (a, b, c), journal = _make()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run_alone)
        await anyio.wait_all_tasks_blocked()
        await b.fail()
        assert (a.lives, b.lives, c.lives) == (1, 2, 1)
        await supervisor.stop()
    assert journal == ["+a", "+b", "+c", "-b", "+b", "-c", "-b", "-a"]
    assert isinstance(a.closed_by, ShuttingDown)


async def test_a_spent_budget_stops_all_and_goes_up() -> None:
    supervisor, (a, b, _), journal = _make(count=2)
    failures: list[NeuronError] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_unwrap, supervisor, failures)
        await anyio.wait_all_tasks_blocked()
        for _ in range(3):
            await a.fail()
    (limit,) = failures
    assert isinstance(limit, RestartLimit)
    assert isinstance(limit.__cause__, ValueError)
    assert limit.retry_after is not None
    assert limit.retry_after > 0
    assert a.lives == 3
    assert sorted(journal[-2:]) == ["-b", "-c"]
    assert isinstance(a.closed_by, RestartLimit)
    assert isinstance(b.closed_by, RestartLimit)
    with pytest.raises(RestartLimit):
        supervisor.add(Child("late", journal))


async def _unwrap(supervisor: Supervisor, into: list[NeuronError]) -> None:
    try:
        await supervisor.run_alone()
    except NeuronError as error:
        into.append(error)


async def test_the_supervisor_above_restarts_the_one_below() -> None:
    lower, (a, b), journal = _make(count=0, names="ab")
    upper = Supervisor("root", budget=RestartBudget(1, 60))
    upper.add(lower)
    failures: list[NeuronError] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_unwrap, upper, failures)
        await anyio.wait_all_tasks_blocked()
        await a.fail()
        assert (a.lives, b.lives) == (2, 2)
        assert a.closed_by is None  # mailboxes are kept
        await b.fail()
    assert [type(each) for each in failures] == [RestartLimit]
    assert isinstance(b.closed_by, RestartLimit)
    assert journal.count("+a") == journal.count("-a") == 2


@pytest.mark.parametrize(
    ("restart", "after_failure"),
    [(Restart.ON_FAILURE, 2), (Restart.NEVER, 1)],
)
async def test_a_failure_restarts_and_an_orderly_end_does_not(restart: Restart, after_failure: int) -> None:
    supervisor, child = Supervisor("top"), Child("a", [])
    supervisor.add(child, restart)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run_alone)
        await anyio.wait_all_tasks_blocked()
        await child.fail()
        assert child.lives == after_failure
        assert (child.closed_by is None) is (restart is Restart.ON_FAILURE)
        await child.finish()
        assert child.lives == after_failure
        assert child.closed_by is not None
        await supervisor.stop()


async def test_a_child_never_restarted_closes_with_a_typed_error() -> None:
    supervisor, child = Supervisor("top"), Child("a", [])
    supervisor.add(child, Restart.NEVER)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run_alone)
        await anyio.wait_all_tasks_blocked()
        await child.fail(ValueError("hidden"))
        assert isinstance(child.closed_by, InternalError)
        assert isinstance(child.closed_by.__cause__, ValueError)
        assert supervisor.children == ()
        await supervisor.stop()


async def test_children_come_while_it_runs_and_not_once_it_stops() -> None:
    supervisor, journal = Supervisor("top"), list[str]()
    a, b = Child("a", journal), Child("b", journal)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run_alone)
        await anyio.wait_all_tasks_blocked()
        supervisor.add(a)
        supervisor.add(b)
        await anyio.wait_all_tasks_blocked()
        assert supervisor.children == ("a", "b")
        await supervisor.stop()
        with pytest.raises(ShuttingDown):
            supervisor.add(a)
    assert journal == ["+a", "+b", "-b", "-a"]


async def test_cancelling_the_root_ends_the_tree() -> None:
    lower, (a, b), _ = _make(names="ab")
    root = Supervisor("root")
    root.add(lower)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(root.run_alone)
        await anyio.wait_all_tasks_blocked()
        assert (a.lives, b.lives) == (1, 1)
        tasks.cancel_scope.cancel()
    assert isinstance(a.closed_by, ShuttingDown)
    assert isinstance(b.closed_by, ShuttingDown)


class Breaker(Actor[str]):
    async def on_message(self, message: str) -> object:
        if message == "break":
            raise ValueError("broken")
        return message


async def test_callers_of_a_restarted_actor_get_their_answers() -> None:
    """Row 19: the caller of the failed message gets a typed error, those behind it their answers."""
    supervisor, actor = Supervisor("top"), Breaker("breaker")
    supervisor.add(actor)
    answers: list[object] = []

    async def ask(message: str) -> None:
        try:
            answers.append(await actor.ask(message, 60))
        except NeuronError as error:
            answers.append(error.code)

    async with anyio.create_task_group() as tasks:
        async with anyio.create_task_group() as callers:
            for message in ("one", "break", "two", "three"):
                callers.start_soon(ask, message)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(_unwrap, supervisor, [])
        assert answers == ["one", "internal_error", "two", "three"]
        for _ in range(3):
            await ask("break")
        await ask("after the budget")
        assert answers[-1] == "restart_limit"
        tasks.cancel_scope.cancel()


@given(st.integers(0, 4), st.integers(1, 100), st.lists(st.integers(0, 30), max_size=40))
def test_no_window_holds_more_restarts_than_the_budget(count: int, window: int, gaps: list[int]) -> None:
    now = 0
    budget = RestartBudget(count, window, clock=lambda: now)
    taken: list[int] = []
    for gap in gaps:
        now += gap
        wait = budget.retry_after_s
        if budget.spend():
            assert wait == 0.0
            taken.append(now)
        elif count > 0:
            assert 0 < wait <= window
        assert len([at for at in taken if at > now - window]) == count - budget.left
        assert budget.left >= 0
    budget.reset()
    assert budget.left == count
