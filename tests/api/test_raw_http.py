"""Raw bytes on the socket: what is no clean HTTP/1.1 is refused in the API's shape, or cut; others are unaffected."""

import json
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from neuron.actors import limits
from neuron.actors.settings import LimitSettings, Settings
from tests.api.fake_daemon import FakeDaemon, FakeServer, FakeStream, answer, chat_body


@pytest.fixture(name="server", scope="module")
def _server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


def connect(server: FakeServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=15)


def exchange(server: FakeServer, data: bytes) -> bytes:
    """Sends and reads until the other end closes."""
    with connect(server) as sock:
        sock.sendall(data)
        return read_all(sock)


def read_all(sock: socket.socket) -> bytes:
    received = b""
    while True:
        try:
            part = sock.recv(65536)
        except ConnectionResetError:
            return received
        if not part:
            return received
        received += part


def parse(answer_bytes: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = answer_bytes.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


GET = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"\x00\x01\x02\r\n\r\n", 400, "malformed_http"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "malformed_http"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "malformed_http"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nbad header\r\n\r\n", 400, "malformed_http"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n", 400, "malformed_http"),
        (b"GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "malformed_http"),
        (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "malformed_http"),
        (POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "malformed_http"),
        (POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400, "malformed_http"),
        (POST + b"Content-Length: -1\r\n\r\n", 400, "malformed_http"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "malformed_http"),
        (POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "malformed_http"),
        (GET + b"X: " + b"a" * 20_000 + b"\r\n\r\n", 431, "headers_too_large"),
        (GET + b"X: " + b"a" * 9_000 + b"\r\nConnection: close\r\n\r\n", 431, "headers_too_large"),
        (GET + b"".join(b"X%d: a\r\n" % i for i in range(101)) + b"\r\n", 431, "headers_too_large"),
        (GET + b"".join(b"X%d: a\r\n" % i for i in range(10_000)) + b"\r\n", 431, "headers_too_large"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "malformed_http"),
        (POST + b"Content-Length: 10000000000\r\n\r\n", 413, "body_too_large"),
        (POST + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 415, "unsupported_media_type"),
    ],
)
def test_malformed_requests_are_refused_in_shape_and_closed(
    server: FakeServer, data: bytes, status: int, code: str
) -> None:
    received = exchange(server, data)
    got, body = parse(received)
    assert (got, body["error"]["code"]) == (status, code) or status == 400 == got
    assert re.search(rb"\r\nx-request-id: req_[0-9a-f]{24}\r\n", received)
    assert set(body["error"]) >= {"message", "type", "param", "code"}


def test_upgrades_are_not_taken_up(server: FakeServer) -> None:
    for upgrade in (b"h2c", b"websocket"):
        data = GET + b"Connection: upgrade, close\r\nUpgrade: " + upgrade + b"\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
        status, body = parse(exchange(server, data))
        assert (status, body) == (200, {"status": "ok"})


def test_expect_continue_with_a_giant_body_is_refused_before_the_body(server: FakeServer) -> None:
    answer_bytes = exchange(server, POST + b"Expect: 100-continue\r\nContent-Length: 10000000000\r\n\r\n")
    assert b"413" in answer_bytes
    assert b"body_too_large" in answer_bytes


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
def test_only_a_post_may_bring_a_large_body(server: FakeServer, method: str) -> None:
    """The probes need no key: what they are sent must not be kept."""
    with server.client() as client:
        assert client.request(method, "/health/live", content=b"{}").status_code in (200, 405)
        assert client.request(method, "/health/live", content=b"x" * 100_000).status_code == 413
        pieces = (b"x" * 10_000 for _ in range(10))
        assert client.request(method, "/health/live", content=pieces).status_code == 413


def test_an_endless_chunked_body_ends_at_the_limit() -> None:
    settings = Settings(limits=LimitSettings(body_mb=1, text_body_mb=1))
    with FakeServer(FakeDaemon(settings)) as server, connect(server) as sock:
        sock.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        sent = 0
        try:
            while sent < 64:
                sock.sendall(chunk)
                sent += 1
        except OSError:
            pass
        status, body = parse(read_all(sock))
        assert (status, body["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(("megabytes", "status"), [(7, 200), (9, 413), (17, 413), (33, 413)])
def test_body_sizes_of_a_text_model(server: FakeServer, megabytes: int, status: int) -> None:
    body = chat_body(messages=[{"role": "user", "content": "x" * (megabytes * limits.MIB)}])
    with server.client() as client:
        response = client.post(
            "/v1/chat/completions", content=msgspec.json.encode(body), headers={"content-type": "application/json"}
        )
    assert response.status_code == status
    if status == 413:
        assert response.json()["error"]["code"] == "body_too_large"


@pytest.mark.parametrize(("megabytes", "status"), [(15, 200), (17, 200), (31, 200), (60, 413)])
def test_body_sizes_of_a_vision_model(server: FakeServer, megabytes: int, status: int) -> None:
    server.daemon.capability_list = ("text", "vision")
    try:
        url = "data:image/png;base64," + "A" * (megabytes * limits.MIB)
        content = [{"type": "image_url", "image_url": {"url": url}}]
        with server.client() as client:
            response = client.post(
                "/v1/chat/completions", json=chat_body(messages=[{"role": "user", "content": content}])
            )
    finally:
        server.daemon.capability_list = ("text",)
    assert response.status_code == status


def test_pipelined_requests_are_answered_in_order(server: FakeServer) -> None:
    answers = exchange(
        server, GET + b"X-Request-Id: one\r\n\r\n" + GET + b"X-Request-Id: two\r\nConnection: close\r\n\r\n"
    )
    assert answers.count(b"HTTP/1.1 200") == 2
    assert answers.index(b"x-request-id: one") < answers.index(b"x-request-id: two")


def test_slow_headers_are_cut(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEADER_SECONDS", msgspec.structs.replace(limits.HEADER_SECONDS, value=1))
    with connect(server) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\n")
        status, body = parse(read_all(sock))
        assert (status, body["error"]["code"]) == (408, "body_timeout")


def test_slow_bodies_are_cut(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_SECONDS", msgspec.structs.replace(limits.BODY_SECONDS, value=1))
    with connect(server) as sock:
        sock.sendall(POST + b"Content-Length: 100\r\n\r\n{")
        status, body = parse(read_all(sock))
        assert (status, body["error"]["code"]) == (408, "body_timeout")


def test_a_body_shorter_than_its_length_leaves_nothing_behind(server: FakeServer) -> None:
    with connect(server) as sock:
        sock.sendall(POST + b"Content-Length: 100\r\n\r\n{")
        sock.shutdown(socket.SHUT_WR)
        read_all(sock)
    wait_until(lambda: server.listener.connections == 0)


def test_connections_end_with_their_client(server: FakeServer) -> None:
    socks = [connect(server) for _ in range(20)]
    wait_until(lambda: server.listener.connections == 20)
    for sock in socks:
        sock.close()
    wait_until(lambda: server.listener.connections == 0)


def test_connections_are_capped(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTIONS", msgspec.structs.replace(limits.CONNECTIONS, value=3))
    kept = [connect(server) for _ in range(3)]
    wait_until(lambda: server.listener.connections == 3)
    with connect(server) as extra:
        assert read_all(extra) == b""
    for sock in kept:
        sock.close()
    wait_until(lambda: server.listener.connections == 0)


def test_a_reused_connection_serves_many_requests(server: FakeServer) -> None:
    server.daemon.on_submit = lambda _request: FakeStream(answer("x"))
    with server.client() as client:
        for _ in range(200):
            assert client.get("/health/live").status_code == 200
    wait_until(lambda: server.listener.connections == 0)


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
