"""Rows 28-32 of the fault matrix with the real daemon: signals, its own death, its own pause, crash loops."""

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from neuron.runtime import shm
from tests.harness.clients import Stream, content
from tests.harness.daemon import DaemonProcess, say
from tests.harness.rows import Rows, alive, fault, rows, turn, until

ENDLESS = say("tick ", repeat=True, delay_ms=20)
SHORT_DRAIN = "[server]\nshutdown_seconds = 1.0\n"


def segments(pid: int) -> list[str]:
    return [name for name in os.listdir(shm.DIRECTORY) if name.startswith(f"{shm.PREFIX}-{pid}-")]


def refused(daemon: DaemonProcess) -> bool:
    """A request to a daemon that drains: no connection, or a typed refusal."""
    try:
        response = daemon.chat("m")
    except httpx.TransportError:
        return True
    return (response.status_code, response.json()["error"]["code"]) == (503, "shutting_down")


def all_gone(pids: list[int]) -> None:
    until(lambda: not [pid for pid in pids if alive(pid)], why=lambda: [pid for pid in pids if alive(pid)])


def test_row_28_with_a_queue_and_a_stream() -> None:
    """Waiters hear at once, the running stream within the drain; exit 0; nothing is left."""
    with DaemonProcess({"m": ENDLESS}, SHORT_DRAIN + "[limits]\nper_principal = 9\n") as daemon:
        pids = daemon.descendants()
        ends: list[Any] = []

        def wait() -> None:
            ends.append(daemon.chat("m", max_tokens=5))

        with Stream(daemon, "hi", "m", max_tokens=4000) as running:
            running.read(deltas=1)
            waiting = [threading.Thread(target=wait) for _ in range(4)]
            for thread in waiting:
                thread.start()
            until(lambda: daemon.get("/health")["models"][0]["queue_depth"] == 4)
            daemon.send_signal(signal.SIGTERM)
            daemon.wait_for_log("stopping")
            assert refused(daemon)
            for thread in waiting:
                thread.join(10)
            assert [(end.status_code, end.json()["error"]["code"]) for end in ends] == [(503, "shutting_down")] * 4
            assert running.read().errors == ["shutting_down"]
            assert not running.done
        assert daemon.process.wait(20) == 0
        all_gone(pids)
        assert segments(daemon.pid) == []


def test_row_28_a_stream_that_ends_within_the_drain_ends_well() -> None:
    with DaemonProcess({"m": say(*"abcdefgh", delay_ms=60)}, "[server]\nshutdown_seconds = 15.0\n") as daemon:
        with Stream(daemon, "hi", "m") as running:
            running.read(deltas=1)
            daemon.send_signal(signal.SIGTERM)
            running.read()
        assert ("".join(running.deltas), running.finish_reasons, running.done) == ("abcdefgh", ["stop"], True)
        assert daemon.process.wait(20) == 0


def test_row_28_during_the_start_up_loads() -> None:
    slow = {"turns": [{"emit": ["x"]}]}
    control = Path(os.environ.get("TMPDIR", "/tmp")) / f"neuron-row-28-{os.getpid()}.json"
    control.write_text('[{"point": "worker.load.progress", "action": "sleep", "seconds": 30}]')
    try:
        with DaemonProcess(
            {"a": slow, "b": slow}, environment={"NEURON_FAILPOINTS": str(control)}, wait=False
        ) as daemon:
            until(lambda: daemon.get("/health")["activation"]["in_progress"])
            until(lambda: daemon.device_pids)
            pids = daemon.descendants()
            assert daemon.terminate(30) == 0
            all_gone(pids)
    finally:
        control.unlink()


def test_row_29_hang_up_is_ignored() -> None:
    with DaemonProcess({"m": say("x")}) as daemon:
        daemon.send_signal(signal.SIGHUP)
        assert content(daemon.chat("m")) == "x"
        assert daemon.terminate() == 0


def test_row_29_the_second_signal_leaves_no_process() -> None:
    with DaemonProcess({"m": ENDLESS}) as daemon, Stream(daemon, "hi", "m", max_tokens=4000) as running:
        running.read(deltas=1)
        pids = daemon.descendants()
        daemon.send_signal(signal.SIGTERM)
        daemon.wait_for_log("stopping")
        daemon.send_signal(signal.SIGINT)
        assert daemon.process.wait(10) == 128 + signal.SIGINT
        all_gone(pids)
        assert segments(daemon.pid) == []


@pytest.mark.parametrize("moment", ["idle", "load", "decode"])
def test_row_30_killed_then_started_again_on_the_same_port(moment: str) -> None:
    """Three device processes; all are gone, no shared memory is left, the port is free, a new daemon serves."""
    config = "".join(f'[[models]]\nid = "scripted:test/{name}"\ndevices = ["{device}"]\n' for name, device in THREE)
    scripts = {name: ENDLESS for name, _ in THREE}
    with DaemonProcess(scripts, config, models=[], wait=moment != "load") as daemon:
        if moment == "load":
            until(lambda: daemon.device_pids)
        pids = daemon.descendants()
        if moment == "decode":
            with Stream(daemon, "hi", "a", max_tokens=4000) as running:
                running.read(deltas=1)
                daemon.kill()
                with pytest.raises(httpx.HTTPError):
                    running.read()
        else:
            daemon.kill()
        all_gone(pids)
        assert segments(daemon.pid) == []
        port = daemon.port
    with DaemonProcess({"m": say("x")}, port=port) as daemon:
        assert content(daemon.chat("m")) == "x"


THREE = [("a", "cpu"), ("b", "cpu:1"), ("c", "cpu:2")]


def test_life_07_leftovers_of_dead_owners_only() -> None:
    """A name of a dead process is swept at start; one of a living process is kept."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    dead = Path(shm.DIRECTORY) / f"{shm.PREFIX}-{ended.pid}-{'0' * 24}"
    living = Path(shm.DIRECTORY) / f"{shm.PREFIX}-{os.getpid()}-{'1' * 24}"
    dead.write_bytes(b"x")
    living.write_bytes(b"x")
    try:
        with DaemonProcess({"m": say("x")}) as daemon:
            assert content(daemon.chat("m")) == "x"
            assert not dead.exists()
            assert living.exists()
    finally:
        dead.unlink(missing_ok=True)
        living.unlink()


def test_row_31_the_daemons_own_pause_is_nobodys_fault(tmp_path: Path) -> None:
    """Stopped for longer than a step may take and longer than a beat may be missed, in the middle of a stream."""
    with rows(tmp_path, [turn("t", when="slow", repeat=True, delay_ms=30)], limits="step_seconds = 2.0") as held:
        with held.row(), Stream(held.daemon, "slow", max_tokens=60) as running:
            running.read(deltas=2)
            held.daemon.send_signal(signal.SIGSTOP)
            time.sleep(4.0)
            held.daemon.send_signal(signal.SIGCONT)
            running.read()
            assert (len(running.deltas), running.done) == (60, True)
            assert held.state() == "ready"


@pytest.fixture(name="looping")
def _looping(tmp_path: Path) -> Iterator[Rows]:
    with rows(tmp_path, [turn("x", when="crash", fault=fault("kill"))]) as held:
        yield held


def test_row_32_a_crash_loop_at_load_is_refused_for_a_while(looping: Rows) -> None:
    held = looping
    held.daemon.unload("target")
    held.arm({"point": "worker.load.begin", "action": "signal", "signal": 9, "count": 99})
    codes = []
    for _ in range(5):
        response = held.daemon.load("target", devices=["cpu"])
        codes.append((response.status_code, response.json()["error"]["code"]))
    assert codes[:3] == [(503, "worker_died")] * 3
    assert codes[3:] == [(503, "restart_limit")] * 2
    assert 1 <= int(response.headers["retry-after"]) <= 60
    assert held.daemon.get("/health/live") == {"status": "ok"}
    assert content(held.ask(name="neighbour")) == "xyz"


def test_life_05_health_tells_the_truth(looping: Rows) -> None:
    held = looping
    assert held.daemon.get("/health")["status"] == "ok"
    assert held.code("crash") == "worker_died"
    held.daemon.wait_state("target", "poisoned")
    health = held.daemon.get("/health")
    assert health["status"] == "degraded"
    states = {model["id"]: model["state"] for model in health["models"]}
    assert states["test/target"] == "poisoned"
    assert states["test/neighbour"] == "ready"
    listed = {model["id"]: model for model in held.daemon.get("/models")}
    assert listed["test/target"]["servable"]["ok"] is False
    with held.daemon.client() as client:
        assert client.get("/health/live").status_code == 200
        assert client.get("/health/ready").status_code == 200
    held.resident()
    assert held.daemon.get("/health")["status"] == "ok"


def test_the_port_is_reusable_while_old_connections_linger() -> None:
    with DaemonProcess({"m": say("x")}) as daemon:
        with socket.create_connection(("127.0.0.1", daemon.port)):
            daemon.kill()
        port = daemon.port
    with DaemonProcess(port=port) as daemon:
        assert daemon.get("/health/live") == {"status": "ok"}
