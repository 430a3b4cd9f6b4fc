"""Messages between the daemon and a template child, and their frames (4-byte big-endian length + MessagePack)."""

import socket
from enum import StrEnum

import msgspec

#: Above any legal request (8 MiB of text, JSON-escaped and marked) and any legal output.
MAX_FRAME = 160 << 20


class RenderJob(msgspec.Struct, frozen=True):
    """`source` is rendered with `variables` (JSON, so that integers have no bound); `max_bytes` caps the output."""

    source: str
    variables: bytes
    max_bytes: int


class Failure(StrEnum):
    REFUSED = "refused"
    SYNTAX = "syntax"
    FORBIDDEN = "forbidden"
    UNDEFINED = "undefined"
    TOO_LARGE = "too_large"
    FAILED = "failed"


class RenderReply(msgspec.Struct, frozen=True):
    """`text` when it rendered, else `failure`; `detail` is the template's own sentence (refused) or a line number."""

    text: str | None = None
    failure: Failure | None = None
    detail: str = ""


class Disconnected(Exception):
    """The other end is gone, or sent a frame that cannot be trusted."""


def send_frame(link: socket.socket, payload: bytes) -> None:
    link.sendall(len(payload).to_bytes(4, "big") + payload)


def receive_frame(link: socket.socket) -> bytearray:
    """One whole frame. Raises Disconnected; TimeoutError when the socket has a timeout."""
    length = int.from_bytes(_exactly(link, 4), "big")
    if length > MAX_FRAME:
        raise Disconnected
    return _exactly(link, length)


def _exactly(link: socket.socket, count: int) -> bytearray:
    buffer = bytearray(count)
    view = memoryview(buffer)
    got = 0
    while got < count:
        read = link.recv_into(view[got:])
        if read == 0:
            raise Disconnected
        got += read
    return buffer
