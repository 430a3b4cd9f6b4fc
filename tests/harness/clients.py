"""Clients of a daemon under fault: a stream read as far as one likes, and a socket that does what no library does."""

import contextlib
import itertools
import json
import socket
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import httpx

from tests.harness.daemon import DaemonProcess

TARGET = "target"
"""The model that a row's fault strikes, unless told otherwise."""
DISTURBED_MARKS = ("/", "0x", "Traceback", "psm_", "Error:", "Exception", "object at")
"""What no error body may hold."""


_numbers = itertools.count(1)


def own_principal() -> dict[str, str]:
    """A principal of its own for each request, so that shares do not interfere."""
    return {"x-helexa-account-id": f"row-{next(_numbers)}"}


def content(response: httpx.Response) -> str:
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


def check_error(response: httpx.Response) -> dict[str, Any]:
    """The error object; its text holds no path, address, class name or traceback."""
    error: dict[str, Any] = response.json()["error"]
    assert {"message", "type", "code", "param"} <= set(error)
    sent = str(error.get("model_id", "")).partition(":")[2] or str(error.get("model_id", ""))
    shown = json.dumps({**error, "model_id": ""}).replace(f"scripted:{sent}", "").replace(sent or " ", "")
    found = [mark for mark in DISTURBED_MARKS if mark in shown]
    assert found == [], shown
    return error


class Stream:
    """A chat stream read to its end, or to its first `deltas` and then held open."""

    def __init__(self, daemon: DaemonProcess, content: str, name: str = TARGET, **fields: Any) -> None:
        self.req_id = f"row-{next(_numbers)}"
        self._body = daemon.chat_body(name, content, stream=True, **fields)
        self._daemon = daemon
        self._stack = contextlib.ExitStack()
        self.lines: list[str] = []

    def __enter__(self) -> Self:
        client = self._stack.enter_context(self._daemon.client(timeout=60.0))
        self.response = self._stack.enter_context(
            client.stream(
                "POST",
                "/v1/chat/completions",
                json=self._body,
                headers={"x-request-id": self.req_id, **own_principal()},
            )
        )
        self._source: Iterator[str] = self.response.iter_lines()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def read(self, deltas: int | None = None) -> Self:
        for line in self._source:
            self.lines.append(line)
            if deltas is not None and len(self.deltas) >= deltas:
                break
        return self

    @property
    def _chunks(self) -> list[dict[str, Any]]:
        return [json.loads(line[6:]) for line in self.lines if line.startswith("data: {")]

    @property
    def deltas(self) -> list[str]:
        pieces = [chunk["choices"][0]["delta"].get("content") for chunk in self._chunks if chunk.get("choices")]
        return [piece for piece in pieces if piece]

    @property
    def errors(self) -> list[str]:
        """Codes of error frames. The last line of a failed stream is its error, never [DONE]."""
        return [chunk["error"]["code"] for chunk in self._chunks if "error" in chunk]

    @property
    def done(self) -> bool:
        return "data: [DONE]" in self.lines

    @property
    def finish_reasons(self) -> list[str]:
        found = [chunk["choices"][0].get("finish_reason") for chunk in self._chunks if chunk.get("choices")]
        return [reason for reason in found if reason]


class RawClient:
    """A TCP client that does what no library does."""

    def __init__(self, daemon: DaemonProcess, *, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(30.0)
        self.socket.connect(("127.0.0.1", daemon.port))
        self._daemon = daemon

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def post(self, text: str, req_id: str, name: str = TARGET, **fields: Any) -> None:
        body = json.dumps(self._daemon.chat_body(name, text, **fields)).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"X-Request-Id: {req_id}\r\nX-Helexa-Account-Id: {req_id}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.socket.sendall(head.encode() + body)
