"""Reads a request body within its limits, before any route sees the request. Called by the edge."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from neuron.actors import limits
from neuron.actors.errors import BodyTimeout, BodyTooLarge, UnsupportedMediaType
from neuron.actors.settings import LimitSettings
from neuron.api.access import INFERENCE
from neuron.api.body_budget import BodyShare
from neuron.api.context import Headers
from neuron.api.errors import MalformedHttp

Receive = Callable[[], Awaitable[Any]]


class ClientGone(Exception):
    """The client left before its body was complete; nobody is there to answer."""


def check_body_headers(method: str, headers: Headers, raw: list[tuple[bytes, bytes]], most: int) -> None:
    """What the headers alone already rule out: two lengths, an encoding, a form, a size of more than `most` bytes."""
    names = [name.lower() for name, _ in raw]
    if b"transfer-encoding" in names and b"content-length" in names:
        raise MalformedHttp("A request cannot have both Content-Length and Transfer-Encoding.")
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise UnsupportedMediaType("Compressed request bodies are not accepted.")
    length = headers.get("content-length", "")
    if length.isdigit() and int(length) > most:
        raise too_large(most)
    if method == "POST" and not _is_json(headers.get("content-type", "")):
        raise UnsupportedMediaType("Send 'Content-Type: application/json'.")


def most_bytes(method: str, path: str, settings: LimitSettings) -> int:
    """Bytes of a body. Only inference has a use for a large one; the probes, which need no key, must cost no memory,
    and what controls the daemon is read on its event loop."""
    if method != "POST":
        return limits.HEADER_TOTAL_BYTES.value
    return settings.body_mb * limits.MIB if path in INFERENCE else limits.CONTROL_BODY_BYTES.value


def too_large(most: int) -> BodyTooLarge:
    shown = f"{most // limits.MIB} MiB" if most >= limits.MIB else f"{most // limits.KIB} KiB"
    return BodyTooLarge(f"The request body is larger than the {shown} that this call takes.", max_bytes=most)


def _is_json(content_type: str) -> bool:
    kind, _, parameters = content_type.lower().partition(";")
    kind = kind.strip()
    charset = parameters.replace(" ", "").replace('"', "")
    if "charset=" in charset and "charset=utf-8" not in charset:
        return False
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


async def read_body(receive: Receive, most: int, share: BodyShare) -> bytes:
    """The whole body, of at most `most` bytes. Counted while it arrives; one that trickles is cut, a large one at a
    fair pace is not.

    Raises BodyTooLarge, BodyTimeout, ClientGone, RateLimited (too many large bodies at one time).
    """
    parts: list[bytes] = []
    size = 0
    started = time.monotonic()
    while True:
        allowed = limits.BODY_SECONDS.value + size / limits.BODY_BYTES_PER_SECOND
        try:
            async with asyncio.timeout(max(0.0, started + allowed - time.monotonic())):
                message = await receive()
        except TimeoutError:
            raise BodyTimeout("The request body took too long to arrive.") from None
        if message["type"] != "http.request":
            raise ClientGone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise too_large(most)
        share.hold(size)
        if not message.get("more_body", False):
            return b"".join(parts)


async def discard_body(receive: Receive, *, seconds: float, at_most: int) -> None:
    """Swallow what a refused client still sends, so that it gets to read the refusal instead of a reset."""
    size = 0
    try:
        async with asyncio.timeout(seconds):
            while size < at_most:
                message = await receive()
                size += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
    except TimeoutError:
        return
