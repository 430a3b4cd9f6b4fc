"""Supervision: runs children (actors, other supervisors), starts them again when they fail, gives up by a budget."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import anyio
import anyio.abc

from neuron.runtime.errors import InternalError, NeuronError, RestartLimit, ShuttingDown
from neuron.runtime.logs import get_logger
from neuron.runtime.restarts import RestartBudget

_log = get_logger(__name__)


class Supervised(Protocol):
    """What a supervisor runs: an Actor, a Supervisor, or anything of this shape."""

    name: str

    async def run(self) -> None:
        """One life. Returning is an orderly end, an exception a failure; may be called again afterwards."""

    def close(self, error: NeuronError) -> None:
        """There will be no further life; whoever waits gets `error`."""


class Restart(Enum):
    ON_FAILURE = "on_failure"
    NEVER = "never"


@dataclass(slots=True, eq=False)
class _Child:
    target: Supervised
    restart: Restart
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)
    running: bool = False
    #: Being stopped by its supervisor: its end is no news.
    expected: bool = False


class Supervisor:
    """Runs its children as tasks of one task group, one_for_one: a failure restarts the child that failed. Is
    Supervised itself, so supervisors form a tree.

    When the budget is spent it stops its children and raises RestartLimit: the supervisor above decides. Children keep
    their mailboxes through every restart, until `close`.
    """

    def __init__(self, name: str, *, budget: RestartBudget | None = None) -> None:
        self.name = name
        self._budget = RestartBudget(3, 300.0) if budget is None else budget
        self._children: list[_Child] = []
        self._tasks: anyio.abc.TaskGroup | None = None
        self._news: deque[tuple[_Child, Exception | None]] = deque()
        self._wake = anyio.Event()
        self._stopping = False
        self._closed_by: NeuronError | None = None

    @property
    def children(self) -> tuple[str, ...]:
        return tuple(child.target.name for child in self._children)

    def add(self, target: Supervised, restart: Restart = Restart.ON_FAILURE) -> None:
        """Add a child; it starts now when the supervisor runs, else with it.

        Raises ShuttingDown (or the error that closed this supervisor) when it is too late.
        """
        if self._closed_by is not None:
            raise self._closed_by.with_traceback(None)
        if self._stopping:
            raise ShuttingDown("This part of the daemon is stopping.")
        child = _Child(target, restart)
        self._children.append(child)
        if self._tasks is not None:
            self._launch(child)

    async def stop(self) -> None:
        """Stop the children, the last started first; `run` returns then."""
        self._stopping = True
        for child in self._children[::-1]:
            if child.running:
                child.expected = True
                child.scope.cancel()
                await child.ended.wait()
        self._wake.set()

    async def run(self) -> None:
        """Run the children until `stop`. Raises RestartLimit when the budget is spent."""
        if self._tasks is not None:
            raise RuntimeError(f"supervisor {self.name} is already running")
        self._news.clear()
        try:
            async with anyio.create_task_group() as self._tasks:
                for child in self._children:
                    self._launch(child)
                given_up = await self._watch()
                self._tasks.cancel_scope.cancel()
        finally:
            self._tasks = None
        if given_up is not None:
            raise given_up

    def close(self, error: NeuronError) -> None:
        self._closed_by = self._closed_by or error
        for child in self._children:
            child.target.close(error)

    async def run_alone(self) -> None:
        """Run as the root: close everything at the end, with the error that ended it."""
        try:
            await self.run()
        except NeuronError as error:
            self.close(error)
            raise
        finally:
            self.close(ShuttingDown("The daemon is stopping."))

    async def _watch(self) -> RestartLimit | None:
        while True:
            while self._news:
                child, error = self._news.popleft()
                if not self._settle(child, error):
                    limit = RestartLimit(
                        "A part of the daemon failed too often.", retry_after=round(self._budget.retry_after_s)
                    )
                    limit.__cause__ = error
                    return limit
            if self._stopping:
                return None
            self._wake = anyio.Event()
            await self._wake.wait()

    def _launch(self, child: _Child) -> None:
        assert self._tasks is not None
        child.scope, child.ended = anyio.CancelScope(), anyio.Event()
        child.running, child.expected = True, False
        self._tasks.start_soon(self._live, child, name=f"{self.name}/{child.target.name}")

    async def _live(self, child: _Child) -> None:
        error: Exception | None = None
        try:
            with child.scope:
                await child.target.run()
        except Exception as failure:
            error = failure
        finally:
            child.running = False
            child.ended.set()
        if not child.expected:
            self._news.append((child, error))
            self._wake.set()

    def _settle(self, child: _Child, error: Exception | None) -> bool:
        """Act on the end of a child; False when the budget is spent."""
        wanted = child.restart is Restart.ON_FAILURE and error is not None
        if error is not None:
            _log.error("supervised child failed", supervisor=self.name, child=child.target.name, exc_info=error)
        if self._stopping or not wanted:
            self._forget(child, error or ShuttingDown("This part of the daemon has stopped."))
            return True
        if not self._budget.spend():
            _log.error(
                "restart budget is spent",
                supervisor=self.name,
                child=child.target.name,
                count=self._budget.count,
                window_s=self._budget.window_s,
            )
            return False
        _log.warning("restarting", supervisor=self.name, child=child.target.name, left=self._budget.left)
        self._launch(child)
        return True

    def _forget(self, child: _Child, error: Exception) -> None:
        self._children.remove(child)
        if not isinstance(error, NeuronError):
            cause, error = error, InternalError("A part of the daemon failed.")
            error.__cause__ = cause
        child.target.close(error)
