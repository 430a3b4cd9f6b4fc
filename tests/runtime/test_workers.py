"""Workers: the bound on threads holds whoever leaves, and a pool of helpers makes no more of them than it may."""

import asyncio
import contextvars
import threading

import anyio
import anyio.lowlevel
import pytest

from neuron.runtime import confined_pool
from neuron.runtime.confined_pool import ConfinedPool
from neuron.runtime.errors import ShuttingDown
from neuron.runtime.workers import Workers

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_left")]
NAME: contextvars.ContextVar[str] = contextvars.ContextVar("name")


class Gate:
    """Work that waits to be let go; counts how much of it runs at once."""

    def __init__(self) -> None:
        self.running = 0
        self.most = 0
        self.begun = 0
        self.open = threading.Event()
        self._lock = threading.Lock()

    def work(self, *_: object) -> bytearray:
        with self._lock:
            self.begun += 1
            self.running += 1
            self.most = max(self.most, self.running)
        assert self.open.wait(30)
        with self._lock:
            self.running -= 1
        return bytearray(b"x")


async def leave_at_once(call: "asyncio.Task[object]") -> None:
    """As a server ends a handler whose client is gone: no scope of ours takes part in it."""
    for _ in range(3):
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_who_leaves_makes_no_room_for_more() -> None:
    workers, gate = Workers(2, "test"), Gate()
    for _ in range(8):
        await leave_at_once(asyncio.ensure_future(workers.run(gate.work)))
    last = asyncio.ensure_future(workers.run(lambda: gate.begun))
    gate.open.set()
    # Of the eight two had begun; the others were dropped while they waited.
    assert await last == 2
    assert gate.most == 2
    workers.close()
    with pytest.raises(ShuttingDown):
        await workers.run(gate.work)


async def test_results_errors_and_context_come_through() -> None:
    workers = Workers(1, "test")
    NAME.set("mine")
    assert await workers.run(NAME.get) == "mine"
    with pytest.raises(ZeroDivisionError):
        await workers.run(divmod, 1, 0)
    workers.close()


async def test_helpers_stay_as_few_when_clients_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    made: list[object] = []

    class Child:
        def __init__(self, module: str) -> None:
            made.append(module)

        exchange = gate.work

        def alive(self) -> bool:
            return True

        def kill(self) -> int:
            return 0

    monkeypatch.setattr(confined_pool, "ConfinedChild", Child)
    pool = ConfinedPool("some.module", 2)
    for _ in range(8):
        await leave_at_once(asyncio.ensure_future(pool.exchange(b"", seconds=1.0)))
    gate.open.set()
    assert await pool.exchange(b"", seconds=1.0) == b"x"
    assert gate.most <= 2
    assert len(made) <= 2
    pool.close()
    with pytest.raises(ShuttingDown):
        await pool.exchange(b"", seconds=1.0)
    with anyio.fail_after(5):
        while gate.running:
            await anyio.lowlevel.checkpoint()
