"""Rows 60 and 61 of the fault matrix: a wall clock that is turned, and an event loop that stands still."""

import signal
import socket
import time
from pathlib import Path

from tests.harness.clients import Stream, content
from tests.harness.daemon import DaemonProcess, say
from tests.harness.rows import until

DAY = 86_400.0
AFTER_2038 = 2**31 + 1000.0
#: Shorter than the whole test: any of them would end a request if it were measured by the wall clock.
LIMITS = "[limits]\nper_principal = 9\nstep_seconds = 5.0\nqueue_seconds = 30.0\nwrite_idle_seconds = 5.0\n"
SLOW = {"turns": [{"emit": ["t"], "when": "slow", "repeat": True, "delay_ms": 20}, {"emit": ["x"]}]}


def test_row_60_a_clock_that_jumps_moves_no_time_limit(tmp_path: Path) -> None:
    """A day on, a day back and past 2038 in the middle of a stream, with a request waiting behind it."""
    control = tmp_path / "offset"
    control.write_text("0")
    with DaemonProcess({"m": SLOW}, LIMITS, unkind=["clock", str(control)]) as daemon:
        pids = daemon.device_pids
        with Stream(daemon, "slow", "m", max_tokens=150) as running, Stream(daemon, "hi", "m") as waiting:
            read = 0
            for offset in (DAY, -DAY, AFTER_2038 - time.time(), 0.0):
                read += 20
                running.read(deltas=read)
                control.write_text(str(offset))
                health = daemon.get("/health")
                assert health["status"] == "ok"
                assert 0 <= health["uptime_s"] < 600
            running.read()
            waiting.read()
        assert (len(running.deltas), running.finish_reasons, running.errors) == (150, ["length"], [])
        assert (waiting.deltas, waiting.finish_reasons, waiting.errors) == (["x"], ["stop"], [])
        control.write_text(str(AFTER_2038 - time.time()))
        answer = daemon.chat("m").json()
        assert answer["created"] >= 2**31
        assert answer["timings"]["predicted_ms"] < 60_000
        assert daemon.wait_for_log("done", model="test/m")
        assert daemon.log_lines()[-1]["timestamp"].startswith("2038-")
        assert daemon.device_pids == pids
        control.write_text(str(-DAY))
        assert daemon.terminate() == 0


def test_row_61_a_loop_that_stands_still_tells_the_manager_nothing(tmp_path: Path) -> None:
    """Other threads of the daemon go on, and so would a beat that one of them sent."""
    control = tmp_path / "seconds"
    control.write_text("1.5")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
        with DaemonProcess({"m": say("x")}, environment=environment, unkind=["block", str(control)]) as daemon:
            manager.settimeout(20.0)
            beats(manager, 3)
            daemon.send_signal(signal.SIGUSR1)
            time.sleep(0.3)
            manager.setblocking(False)
            while heard(manager):
                pass
            time.sleep(0.8)
            assert not heard(manager)
            manager.settimeout(20.0)
            beats(manager, 3)
            assert content(daemon.chat("m")) == "x"
            until(lambda: daemon.get("/health")["status"] == "ok")
            assert daemon.log_lines("device process died") == []


def beats(manager: socket.socket, count: int) -> None:
    while count > 0:
        count -= "WATCHDOG=1" in manager.recv(4096).decode()


def heard(manager: socket.socket) -> bytes:
    try:
        return manager.recv(4096)
    except BlockingIOError:
        return b""
