"""Streams at the HTTP layer: framing, pings, errors, clients that leave or do not read."""

import json
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from neuron.actors.errors import DeviceFault, ModelNotFound, ModelPoisoned, RateLimited
from neuron.actors.events import Failed, InferenceEvent, Queued, Start, TextDelta
from neuron.actors.request import InferenceRequest
from neuron.actors.settings import LimitSettings, Settings
from neuron.runtime.errors import NeuronError
from tests.api.fake_daemon import FakeDaemon, FakeServer, FakeStream, answer, chat_body, finish


def serve(*events: InferenceEvent | float, forever: bool = False, settings: Settings | None = None) -> FakeServer:
    daemon = FakeDaemon(settings)
    daemon.on_submit = lambda _request: FakeStream(list(events), forever)
    return FakeServer(daemon)


def read_stream(server: FakeServer, path: str = "/v1/chat/completions", **fields: Any) -> list[str]:
    """The frames, split as strict readers do it."""
    with server.client() as client, client.stream("POST", path, json=chat_body(stream=True, **fields)) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert "content-encoding" not in response.headers
        text = response.read().decode("utf-8")
    assert text.endswith("\n\n")
    assert "\r" not in text
    return text.split("\n\n")[:-1]


def data_of(frames: list[str]) -> list[Any]:
    return [json.loads(frame[6:]) for frame in frames if frame.startswith("data: {")]


def test_role_chunk_goes_out_before_anything_is_computed() -> None:
    with serve(Start(7), 30.0, finish()) as server, server.client() as client:
        with client.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)) as response:
            first = next(response.iter_lines())
        assert json.loads(first[6:])["choices"][0]["delta"] == {"role": "assistant"}


def test_a_silent_stream_pings_every_second() -> None:
    with serve(Start(7), 2.5, TextDelta("x"), finish()) as server:
        frames = read_stream(server)
    assert sum(frame.startswith(":") for frame in frames) == 2
    assert frames[-1] == "data: [DONE]"


def test_waiting_requests_hear_their_position() -> None:
    with serve(Queued(3, 0.0), 1.5, Queued(2, 1.5), 1.2, *answer("x")) as server:
        comments = [frame for frame in read_stream(server) if frame.startswith(":")]
    assert "position 3" in comments[0]
    assert any("position 2" in comment and "waited" in comment for comment in comments)


@pytest.mark.parametrize(
    "text", ["a\nb\rc", "data: x\n\ndata: [DONE]\n\n", "\u2028\u2029\x85", "\x00\x1b[0m", "\U0001f600"]
)
def test_any_text_survives_framing(text: str) -> None:
    with serve(*answer(text, text)) as server:
        chunks = data_of(read_stream(server))
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == text * 2
    assert len({chunk["id"] for chunk in chunks}) == 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_one_error_and_a_close_after_a_failure(path: str) -> None:
    error = DeviceFault("The device failed.")
    with serve(Start(7), TextDelta("a"), TextDelta("b"), Failed(error)) as server:
        frames = read_stream(server, path, input="hi")
    assert "[DONE]" not in "".join(frames)
    last = data_of([frame.partition("\n")[2] if frame.startswith("event:") else frame for frame in frames])[-1]
    assert "device_fault" in json.dumps(last)


def test_a_defect_inside_a_stream_is_one_error_frame() -> None:
    class Broken(FakeStream):
        async def next(self, wait_s: float) -> InferenceEvent | None:
            if self.taken == 2:
                raise RuntimeError("/secret/path 0xdeadbeef")
            return await super().next(wait_s)

    daemon = FakeDaemon()
    daemon.on_submit = lambda _request: Broken(answer("a", "b"))
    with FakeServer(daemon) as server:
        frames = read_stream(server)
    assert data_of(frames)[-1]["error"]["code"] == "internal_error"
    assert "secret" not in "".join(frames)
    assert daemon.streams[0].cancelled


@pytest.mark.parametrize("error", [ModelNotFound("x"), ModelPoisoned("p"), RateLimited("full", kind="queue_full")])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_a_refused_stream_gets_its_status(error: NeuronError, path: str) -> None:
    def refuse(_request: InferenceRequest) -> FakeStream:
        raise error

    daemon = FakeDaemon()
    daemon.on_submit = refuse
    with FakeServer(daemon) as server, server.client() as client:
        response = client.post(path, json=chat_body(stream=True, input="hi"))
        assert response.status_code == error.status
        assert response.headers["content-type"] == "application/json"
        assert client.post(path, json=chat_body(stream=True, input="hi", temperature=9)).status_code == 400


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_a_client_that_leaves_cancels_its_request(path: str, streamed: bool) -> None:
    with serve(Start(7), 60.0, finish()) as server:
        body = json.dumps(chat_body(stream=streamed, input="hi")).encode()
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            wait_until(lambda: bool(server.daemon.streams))
        wait_until(lambda: server.daemon.streams[0].cancelled == ["client_disconnected"])
        wait_until(lambda: server.listener.connections == 0)


def test_a_client_that_does_not_read_is_cut() -> None:
    settings = Settings(limits=LimitSettings(write_idle_seconds=1.0))
    with serve(TextDelta("x" * 4000), forever=True, settings=settings) as server:
        body = json.dumps(chat_body(stream=True)).encode()
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", server.port))
            head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            wait_until(lambda: bool(server.daemon.streams))
            stream = server.daemon.streams[0]
            wait_until(lambda: stream.cancelled == ["slow_client"])
            # What lay in buffers is bounded: nothing like the endless answer was taken.
            assert stream.taken < 500
        wait_until(lambda: server.listener.connections == 0)


def test_load_progress_streams() -> None:
    with FakeServer() as server, server.client() as client:
        response = client.post("/models/load?stream=true", json={"model_id": "org/name"})
        assert data_of(response.text.split("\n\n")) == [{"stage": "reading", "fraction": 0.5}, {"status": "loaded"}]
        server.daemon.load_error = ModelNotFound("org/name")
        refused = client.post("/models/load?stream=true", json={"model_id": "org/name"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
