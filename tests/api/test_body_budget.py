"""Large bodies share a budget: many at once are refused with 429, small ones pass, and everything is given back."""

import socket
import time

import msgspec
import pytest

from neuron.actors import limits
from neuron.api import edge
from neuron.api.body_budget import FREE_BYTES, BodyBudget
from tests.api.fake_daemon import FakeServer, chat_body
from tests.api.test_raw_http import POST, connect, parse, read_all

MOST = 1 << 20


def large(size: int) -> bytes:
    """A request of `size` bytes of body, in one piece."""
    body = msgspec.json.encode(chat_body(messages=[{"role": "user", "content": ""}]))
    body = body.replace(b'"content":""', b'"content":"' + b"x" * (size - len(body)) + b'"')
    return POST + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def ask(server: FakeServer, request: bytes) -> tuple[int, bytes]:
    with connect(server) as sock:
        sock.sendall(request)
        answer = read_all(sock)
    return int(answer.split()[1]), answer


def until_held(budget: BodyBudget, least: int, most: int) -> None:
    deadline = time.monotonic() + 10
    while not least <= budget.held <= most:
        assert time.monotonic() < deadline, budget.held
        time.sleep(0.01)


def begin(server: FakeServer, request: bytes, count: int) -> socket.socket:
    sock = connect(server)
    sock.sendall(request[:count])
    return sock


def test_bodies_beyond_the_budget_are_refused_until_others_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = BodyBudget(MOST)
    monkeypatch.setattr(edge, "BodyBudget", lambda: budget)
    with FakeServer() as server:
        first = large(MOST)
        slow = begin(server, first, 900_000)
        until_held(budget, 800_000, MOST)
        status, answer = ask(server, large(500_000))
        assert status == 429
        assert b"retry-after: 2" in answer
        error = parse(answer)[1]["error"]
        assert (error["code"], error["kind"]) == ("rate_limit_exceeded", "queue_full")
        assert ask(server, large(FREE_BYTES))[0] == 200
        slow.sendall(first[900_000:])
        assert read_all(slow).split()[1] == b"200"
        slow.close()
        until_held(budget, 0, 0)
        assert ask(server, large(MOST))[0] == 200


def test_a_client_that_leaves_gives_its_part_back(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = BodyBudget(MOST)
    monkeypatch.setattr(edge, "BodyBudget", lambda: budget)
    with FakeServer() as server:
        gone = begin(server, large(MOST), 900_000)
        until_held(budget, 800_000, MOST)
        gone.close()
        until_held(budget, 0, 0)
        # One that is refused for another reason gives its part back as well.
        assert ask(server, large(800_000).replace(b'"role"', b'"rule"'))[0] == 400
        until_held(budget, 0, 0)


def test_a_streaming_answer_holds_nothing_of_its_question(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = BodyBudget(MOST)
    monkeypatch.setattr(edge, "BodyBudget", lambda: budget)
    with FakeServer() as server:
        held: list[int] = []
        play = server.daemon.on_submit

        def submit(request: object) -> object:
            held.append(budget.held)
            return play(request)  # type: ignore[arg-type]

        server.daemon.on_submit = submit  # type: ignore[assignment]
        body = large(MOST).replace(b'"messages"', b'"stream":true,"messages"', 1)
        body = body.replace(b"Content-Length: %d" % MOST, b"Content-Length: %d" % (MOST + len(b'"stream":true,')))
        assert ask(server, body)[0] == 200
        assert held[0] > 900_000
        until_held(budget, 0, 0)


def test_the_table_names_the_budget() -> None:
    assert BodyBudget().most == limits.BODIES_BYTES.value
