"""Notices to the service manager (rows 61 and 62): right bytes, and no kind of socket can hold the daemon up."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from neuron.runtime.notify import Notifier

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        if request.param == "path":
            address = str(tmp_path / "notify")
            sock.bind(address)
        else:
            address = f"@neuron-test-{os.getpid()}"
            sock.bind("\0" + address[1:])
        yield address, sock


def test_each_notice_is_one_datagram(manager: tuple[str, socket.socket]) -> None:
    address, sock = manager
    notifier = Notifier.from_environment({"NOTIFY_SOCKET": address})
    assert notifier.enabled
    assert notifier.ready("2 models\nREADY=0")
    assert notifier.status("busy")
    assert notifier.watchdog()
    assert notifier.extend_timeout(2.5)
    assert notifier.stopping()
    assert [sock.recv(4096) for _ in range(5)] == [
        b"READY=1\nSTATUS=2 models READY=0",
        b"STATUS=busy",
        b"WATCHDOG=1",
        b"EXTEND_TIMEOUT_USEC=2500000",
        b"STOPPING=1",
    ]
    assert notifier.failures == 0


@pytest.mark.parametrize(
    "address", ["", "relative", "@", "/", "vsock:2:1", "/a\0b", "/" + "x" * 300, "/no/such/socket"]
)
def test_an_odd_or_absent_socket_costs_nothing(address: str) -> None:
    notifier = Notifier.from_environment({"NOTIFY_SOCKET": address})
    assert not notifier.ready()
    assert not notifier.watchdog()


def test_without_a_manager_nothing_is_sent() -> None:
    notifier = Notifier.from_environment({})
    assert not notifier.enabled
    assert not notifier.ready("x")
    assert notifier.failures == 0


def test_a_full_socket_never_blocks(manager: tuple[str, socket.socket]) -> None:
    address, _ = manager
    notifier = Notifier(address)
    sent = 0
    while notifier.status("x" * 300):
        sent += 1
        assert sent < 100_000
    assert notifier.failures == 1
    assert not notifier.watchdog()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"WATCHDOG_USEC": "2000000"}, 2.0),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "7"}, 2.0),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_interval(environment: dict[str, str], expected: float | None) -> None:
    assert Notifier.from_environment(environment, pid=7).watchdog_s == expected


async def test_beats_stop_when_the_daemon_is_not_healthy(manager: tuple[str, socket.socket]) -> None:
    address, sock = manager
    notifier = Notifier(address, watchdog_s=0.002)
    answers = iter([True, True, False, True])

    def healthy() -> bool:
        try:
            return next(answers)
        except StopIteration:
            scope.cancel()
            return False

    with anyio.CancelScope() as scope:
        await notifier.beat(healthy)
    beats = 0
    while True:
        try:
            assert sock.recv(100) == b"WATCHDOG=1"
        except BlockingIOError:
            break
        beats += 1
    assert beats == 3


async def test_no_watchdog_no_beats() -> None:
    await Notifier("@x").beat(lambda: pytest.fail("asked"))
    await Notifier(None, watchdog_s=1.0).beat(lambda: pytest.fail("asked"))
