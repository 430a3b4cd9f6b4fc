"""Rows 23-27 of the fault matrix over HTTP: clients that leave, half-close or do not read.

Work is counted, not timed: the daemon's own log at debug level says how many prefill chunks and tokens a request cost.
"""

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from ops.chaos.memory import held_bytes
from tests.harness.clients import RawClient, Stream, content
from tests.harness.rows import Rows, rows, turn, until

TURNS = [
    turn("x", when="slow prefill", prefill_ms_per_token=2),
    turn("t", when="endless", repeat=True, delay_ms=20),
    turn("t", when="unhurried", repeat=True, delay_ms=250),
    turn("w" * 2000, when="flood", repeat=True),
]
CHUNK = 64
LONG = "slow prefill " + "word " * 200
"""About 17 chunks of 64 tokens, 128 ms each."""


@pytest.fixture(name="held", scope="module")
def _held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rows]:
    limits = f"prefill_chunk_tokens = {CHUNK}\nwrite_idle_seconds = 1.0\nqueue_per_model = 8"
    config = '[logging]\nlevel = "debug"\n'
    with rows(tmp_path_factory.mktemp("rows"), TURNS, limits=limits, config=config, context_length=16384) as held:
        yield held


def ended(held: Rows, req_id: str) -> dict[str, Any]:
    """The one terminal line of a request that failed."""
    return held.daemon.wait_for_log("failed", req_id=req_id)


def test_row_23_gone_while_queued(held: Rows) -> None:
    with held.row(), Stream(held.daemon, "endless", max_tokens=4000) as running:
        running.read(deltas=1)
        with RawClient(held.daemon) as waiting:
            waiting.post("plain", "gone-queued")
            until(lambda: held.figures() == (1, 1))
        until(lambda: held.figures() == (1, 0))
        line = ended(held, "gone-queued")
        assert (line["error_code"], line["phase"]) == ("client_disconnected", "queue")
        assert held.daemon.log_lines("prefill chunk", req_id="gone-queued") == []


def test_trap_16_waiters_that_left_give_their_places_back(held: Rows) -> None:
    """An idle model answered "busy" for ever. More waiters leave than there are places."""
    with held.row(), Stream(held.daemon, "endless", max_tokens=4000) as running:
        running.read(deltas=1)
        for number in range(12):
            with RawClient(held.daemon) as waiting:
                waiting.post("plain", f"left-{number}", stream=bool(number % 2))
                until(lambda: held.figures() == (1, 1))
            until(lambda: held.figures() == (1, 0))


def test_row_24_gone_in_prefill(held: Rows) -> None:
    with held.row():
        with RawClient(held.daemon) as client:
            client.post(LONG, "gone-prefill", stream=True)
            until(lambda: len(held.daemon.log_lines("prefill chunk", req_id="gone-prefill")) >= 2)
        left = len(held.daemon.log_lines("prefill chunk", req_id="gone-prefill"))
        line = ended(held, "gone-prefill")
        assert (line["error_code"], line["phase"]) == ("client_disconnected", "prefill")
        done = len(held.daemon.log_lines("prefill chunk", req_id="gone-prefill"))
        assert done <= left + 1
        assert content(held.ask()) == "abc"
        assert len(held.daemon.log_lines("prefill chunk", req_id="gone-prefill")) == done


@pytest.mark.parametrize("streamed", [True, False])
def test_row_25_gone_in_decode(held: Rows, streamed: bool) -> None:
    with held.row():
        req_id = f"gone-decode-{streamed}"
        with RawClient(held.daemon) as client:
            client.post("endless", req_id, stream=streamed, max_tokens=4000)
            held.daemon.wait_for_log("prefill complete", req_id=req_id)
        line = ended(held, req_id)
        assert (line["error_code"], line["phase"]) == ("client_disconnected", "decode")
        assert line["completion_tokens"] < 400
        assert content(held.ask()) == "abc"


def test_row_25_at_most_one_more_token_is_computed(held: Rows) -> None:
    """Tokens far enough apart that the departure is known before the next one, however busy the machine is."""
    with held.row():
        with Stream(held.daemon, "unhurried", max_tokens=4000) as stream:
            stream.read(deltas=2)
        line = ended(held, stream.req_id)
        assert (line["error_code"], line["phase"]) == ("client_disconnected", "decode")
        assert line["completion_tokens"] <= len(stream.deltas) + 1


def test_row_25_a_half_close_is_no_departure(held: Rows) -> None:
    """shutdown(WR) says that nothing more is sent, not that nobody listens."""
    with held.row():
        with RawClient(held.daemon) as client:
            client.post("plain", "half-closed")
            client.socket.shutdown(socket.SHUT_WR)
            answer = b""
            while data := client.socket.recv(65536):
                answer += data
        assert b'"content":"abc"' in answer.replace(b'": "', b'":"')
        assert held.daemon.log_lines("done", req_id="half-closed")


def test_row_27_a_reader_that_stalls_is_cut(held: Rows) -> None:
    """Neither its connection nor the model waits for it, and what is kept for it is bounded."""
    with held.row():
        before = held_bytes(held.daemon.pid)
        with RawClient(held.daemon, receive_buffer=2048) as client:
            client.post("flood", "stalled", stream=True, max_tokens=15000)
            line = ended(held, "stalled")
            assert (line["error_code"], line["phase"]) == ("slow_client", "decode")
            until(lambda: held.figures()[0] == 0)
            assert content(held.ask()) == "abc"
            assert held_bytes(held.daemon.pid) - before < 32 << 20


def test_many_that_leave_at_random_moments_leave_nothing(held: Rows) -> None:
    """Departures in queue, prefill and decode in a fixed random order; each has its one terminal line."""
    moments = [0, 3, 1, 0, 2, 3, 1, 2, 0, 1, 3, 2]
    with held.row():
        for number, moment in enumerate(moments):
            text = LONG if moment == 1 else "endless"
            with RawClient(held.daemon) as client:
                client.post(text, f"random-{number}", stream=number % 3 != 0, max_tokens=4000)
                if moment == 1:
                    until(lambda n=number: held.daemon.log_lines("prefill chunk", req_id=f"random-{n}"))  # type: ignore[misc]
                elif moment == 2:
                    held.daemon.wait_for_log("prefill complete", req_id=f"random-{number}")
                elif moment == 3:
                    client.socket.shutdown(socket.SHUT_WR)
        until(lambda: held.figures() == (0, 0))
        assert content(held.ask()) == "abc"


def test_conc_03_nothing_is_kept_of_requests_that_are_over(held: Rows) -> None:
    """Two hundred short requests; tasks, descriptors and shared memory are as before (held.row checks)."""
    with held.row(neighbour=False), held.daemon.client() as client:
        threads = len(os.listdir(f"/proc/{held.daemon.pid}/task"))
        for number in range(200):
            body = held.daemon.chat_body("target", f"short {number}")
            assert client.post("/v1/chat/completions", json=body).status_code == 200
        assert len(os.listdir(f"/proc/{held.daemon.pid}/task")) <= threads + 2
