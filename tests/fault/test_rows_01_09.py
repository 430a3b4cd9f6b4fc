"""Rows 1-9 and 22 of the fault matrix over HTTP: device processes that die or hang, beside a neighbour."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.harness.clients import TARGET, Stream, content
from tests.harness.rows import Rows, alive, fault, rows, turn, until

TURNS = [
    turn("a", "b", "c", when="kill in prefill", fault=fault("kill", "prefill", 1)),
    turn("p", "q", "r", "s", when="kill in decode", fault=fault("kill", "decode", 3)),
    turn("a", when="hang in decode", fault=fault("hang", "decode", 0)),
    turn("t", when="slow", repeat=True, delay_ms=30),
]
LONG = "word " * 60
"""Three chunks of the prefill in this module's configuration."""


@pytest.fixture(name="held", scope="module")
def _held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rows]:
    limits = "prefill_chunk_tokens = 128\nstep_seconds = 2.0\nload_stall_seconds = 4.0"
    with rows(tmp_path_factory.mktemp("rows"), TURNS, limits=limits) as held:
        yield held


def test_row_1_killed_in_mid_load(held: Rows) -> None:
    with held.row():
        assert held.daemon.unload(TARGET).status_code == 200
        held.arm({"point": "worker.load.progress", "action": "signal", "signal": 9, "start": 2})
        response = held.daemon.load(TARGET, devices=["cpu"])
        assert (response.status_code, response.json()["error"]["code"]) == (503, "worker_died")
        assert response.headers["x-should-retry"] == "false"
        assert held.state() == "failed"
        died = held.daemon.log_lines("device process died")[-1]
        assert (died["reason"], died["phase"]) == ("worker_exited: signal SIGKILL", "load")


@pytest.mark.parametrize("streamed", [True, False])
def test_row_2_killed_in_prefill(held: Rows, streamed: bool) -> None:
    with held.row():
        pid = held.pid
        if streamed:
            with Stream(held.daemon, f"kill in prefill {LONG}") as stream:
                assert stream.read().errors == ["worker_died"]
                assert (stream.deltas, stream.done, stream.finish_reasons) == ([], False, [])
        else:
            response = held.ask(f"kill in prefill {LONG}")
            assert (response.status_code, response.json()["error"]["code"]) == (503, "worker_died")
            assert response.headers["x-should-retry"] == "false"
            assert "retry-after" not in response.headers
        held.daemon.wait_state(TARGET, "poisoned")
        assert held.daemon.get("/health")["status"] == "degraded"
        assert held.code() == "model_poisoned"
        assert held.daemon.unload(TARGET).status_code == 200
        assert held.state() is None
        held.resident()
        assert held.pid != pid
        assert not alive(pid)


def test_row_3_killed_in_decode_keeps_what_was_said(held: Rows) -> None:
    with held.row():
        with Stream(held.daemon, "kill in decode") as stream:
            stream.read()
        assert "".join(stream.deltas) == "pqr"
        assert (stream.errors, stream.done, stream.finish_reasons) == (["worker_died"], False, [])
        assert held.daemon.wait_state(TARGET, "poisoned")["poisoned_at"]
        until(lambda: "SIGKILL" in held.reason)
        marked = held.daemon.log_lines("model marked poisoned")[-1]
        assert (marked["phase"], marked["req_id"]) == ("decode", stream.req_id)


def test_row_5_killed_while_idle(held: Rows) -> None:
    with held.row():
        os.kill(held.pid, signal.SIGKILL)
        held.daemon.wait_state(TARGET, "poisoned")
        died = held.daemon.log_lines("device process died")[-1]
        assert (died["reason"], died["phase"], "req_id" in died) == ("worker_exited: signal SIGKILL", "idle", False)
        assert held.code() == "model_poisoned"
        assert held.daemon.get("/health")["status"] == "degraded"


def test_row_6_killed_in_unload(held: Rows) -> None:
    with held.row():
        pid = held.pid
        held.arm({"point": "worker.reply", "action": "signal", "signal": 9})
        assert held.daemon.unload(TARGET).status_code == 200
        assert held.state() is None
        until(lambda: not alive(pid))


@pytest.mark.parametrize("how", ["stopped", "stuck", "stuck, buffered"])
def test_row_7_hang_in_decode(held: Rows, how: str) -> None:
    with held.row():
        if how == "stuck, buffered":
            response = held.ask("hang in decode")
            assert (response.status_code, response.json()["error"]["code"]) == (503, "worker_unresponsive")
            held.daemon.wait_state(TARGET, "poisoned")
            return
        with Stream(held.daemon, "slow" if how == "stopped" else "hang in decode", max_tokens=4000) as stream:
            if how == "stopped":
                stream.read(deltas=2)
                os.kill(held.pid, signal.SIGSTOP)
            pid = held.pid
            stream.read()
        assert stream.errors == ["worker_unresponsive"]
        held.daemon.wait_state(TARGET, "poisoned")
        assert held.reason == "worker_unresponsive"
        until(lambda: not alive(pid))


def test_row_8_stopped_while_idle(held: Rows) -> None:
    with held.row():
        os.kill(held.pid, signal.SIGSTOP)
        assert held.daemon.wait_state(TARGET, "poisoned")["reason"] == "worker_unresponsive"
        assert held.code() == "model_poisoned"


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGBUS])
def test_row_9_death_in_native_code(held: Rows, number: signal.Signals) -> None:
    with held.row():
        held.arm({"point": "worker.decode.step", "action": "signal", "signal": int(number)})
        assert held.code() == "worker_died"
        held.daemon.wait_state(TARGET, "poisoned")
        until(lambda: number.name in held.reason)
        until(lambda: any("Fatal Python error" in line for line in held.daemon.raw_log()))


def test_row_22_a_device_that_does_not_read(held: Rows) -> None:
    """The loop stays live while nobody takes its jobs; jobs larger than any socket buffer: test_worker_rows."""
    with held.row():
        with Stream(held.daemon, "slow", max_tokens=4000) as running:
            running.read(deltas=1)
            os.kill(held.pid, signal.SIGSTOP)
            for _ in range(20):
                assert held.daemon.get("/health")["status"] in ("ok", "degraded")
            assert running.read().errors == ["worker_unresponsive"]
        assert held.state() == "poisoned"


def test_a_client_that_retries_meets_a_poisoned_model_once(held: Rows) -> None:
    """The official client honours x-should-retry: one call, one request."""
    with held.row():
        os.kill(held.pid, signal.SIGKILL)
        held.daemon.wait_state(TARGET, "poisoned")
        before = len(held.daemon.log_lines("failed", error_code="model_poisoned"))
        client = held.daemon.openai(max_retries=2)
        with pytest.raises(Exception, match="model"):
            client.chat.completions.create(
                model=held.daemon.model_id(TARGET), messages=[{"role": "user", "content": "hi"}]
            )
        client.close()
        time.sleep(0.1)
        assert len(held.daemon.log_lines("failed", error_code="model_poisoned")) == before + 1


def test_the_neighbour_would_be_noticed(held: Rows) -> None:
    """Negative control: a row that hurts the neighbour fails."""

    def hurt() -> None:
        with held.row():
            os.kill(held.daemon.device_pids["cpu:1"], signal.SIGKILL)
            until(lambda: held.state("neighbour") == "poisoned")
            assert held.code(name="neighbour") == "ok"

    with pytest.raises(AssertionError, match=r"model_poisoned|worker_died"):
        hurt()
    assert held.daemon.load("neighbour", devices=["cpu:1"]).status_code == 200
    assert content(held.ask(name="neighbour")) == "xyz"
