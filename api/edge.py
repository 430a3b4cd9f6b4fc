"""The outermost ASGI layer: request ids, access, limits, bodies, and an OpenAI-shaped answer to whatever goes wrong.

Only what passed here reaches the Quart app; the app sees the whole body at once.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from neuron.actors import limits
from neuron.actors.errors import HeadersTooLarge
from neuron.actors.settings import Settings
from neuron.api.access import Access, Asking
from neuron.api.body import ClientGone, Receive, check_body_headers, discard_body, most_bytes, read_body
from neuron.api.body_budget import BodyBudget, BodyShare
from neuron.api.context import Headers, RequestContext, collect_headers, wants_thinking
from neuron.api.errors import MalformedHttp, error_bytes, error_headers, log_rejection, public
from neuron.api.request_ids import request_id
from neuron.api.traffic import Traffic
from neuron.runtime.errors import NeuronError
from neuron.runtime.logs import get_logger

_log = get_logger("neuron.api")
_DISCARD_S = 2.0
Send = Callable[[Any], Awaitable[None]]
AsgiApp = Callable[[Any, Receive, Send], Awaitable[None]]


class _Reply:
    """Wraps `send`: adds the headers every answer has, and remembers whether it has begun."""

    def __init__(self, send: Send, req_id: str, extra: list[tuple[bytes, bytes]]) -> None:
        self._send = send
        self.code = ""
        self._headers = [(b"x-request-id", req_id.encode("latin1")), *extra]
        self.status = 0

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = int(message["status"])
            message = {**message, "headers": [*message.get("headers", []), *self._headers]}
        await self._send(message)

    async def error(self, error: NeuronError, *, head: bool, close: bool, finish: bool = True) -> None:
        self.code = error.code
        body = b"" if head else error_bytes(error)
        headers = [(name.encode(), value.encode()) for name, value in error_headers(error)]
        headers.append((b"content-length", str(len(error_bytes(error))).encode()))
        if close:
            headers.append((b"connection", b"close"))
        await self({"type": "http.response.start", "status": error.status, "headers": headers})
        await self({"type": "http.response.body", "body": body, "more_body": not finish})


class Edge:
    """`app` is the Quart app's ASGI callable."""

    def __init__(self, app: AsgiApp, settings: Settings, access: Access, traffic: Traffic) -> None:
        self._app = app
        self._limits = settings.limits
        self._access = access
        self._traffic = traffic
        self._bodies = BodyBudget()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started = time.monotonic()
        headers = collect_headers(scope["headers"])
        req_id = request_id(headers)
        reply = _Reply(send, req_id, self._cors(headers))
        structlog.contextvars.bind_contextvars(req_id=req_id)
        asking = Asking(
            method=scope["method"],
            path=scope["path"],
            raw_path=scope["raw_path"],
            peer=str((scope.get("client") or ("",))[0]),
            headers=headers,
        )
        try:
            with self._bodies.share() as share:
                await self._handle(scope, receive, reply, asking, req_id, share)
        except ClientGone:
            _log.debug("client left before its body was complete", path=asking.path[:200])
        except Exception as error:
            await self._defect(error, reply, asking, scope)
        finally:
            self._traffic.count(asking.method, asking.path, reply.status, time.monotonic() - started, reply.code)

    async def _handle(
        self, scope: Any, receive: Receive, reply: _Reply, asking: Asking, req_id: str, share: BodyShare
    ) -> None:
        try:
            _check_headers(scope, asking)
            if asking.method == "OPTIONS" and self._access.allowed_origin(asking.headers) is not None:
                await self._preflight(reply)
                return
            self._access.check(asking)
            most = most_bytes(asking.method, asking.path, self._limits)
            check_body_headers(asking.method, asking.headers, scope["headers"], most)
            body = await read_body(receive, most, share)
        except NeuronError as error:
            log_rejection(error, method=asking.method, path=asking.path)
            await self._refuse(error, receive, reply, asking)
            return
        context = RequestContext(
            req_id=req_id,
            principal=self._access.principal(asking),
            include_thinking=wants_thinking(asking.headers),
            connection=scope["state"].get("connection"),
            body=body,
            forget_body=share.release,
        )
        scope["state"]["context"] = context
        try:
            await self._app(scope, _after_body(receive), reply)
        finally:
            reply.code = context.error_code
            for leave in context.on_end:
                leave()

    async def _refuse(self, error: NeuronError, receive: Receive, reply: _Reply, asking: Asking) -> None:
        """Answer at once, then let the client finish sending (within bounds) so that it can read the answer."""
        await reply.error(error, head=asking.method == "HEAD", close=True, finish=False)
        await discard_body(receive, seconds=_DISCARD_S, at_most=4 * self._limits.body_mb * limits.MIB)
        await reply({"type": "http.response.body", "body": b"", "more_body": False})

    async def _defect(self, error: Exception, reply: _Reply, asking: Asking, scope: Any) -> None:
        shown = public(error)
        log_rejection(shown, method=asking.method, path=asking.path)
        if reply.status == 0:
            await reply.error(shown, head=asking.method == "HEAD", close=True)
        elif (connection := scope["state"].get("connection")) is not None:
            connection.abort()

    def _cors(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        origin = self._access.allowed_origin(headers)
        if origin is None:
            return []
        return [
            (b"access-control-allow-origin", origin.encode("latin1")),
            (b"access-control-expose-headers", b"x-request-id, retry-after, x-should-retry"),
            (b"vary", b"Origin"),
        ]

    @staticmethod
    async def _preflight(reply: _Reply) -> None:
        headers = [
            (b"access-control-allow-methods", b"GET, POST"),
            (b"access-control-allow-headers", b"authorization, content-type, x-api-key, x-request-id"),
            (b"access-control-max-age", b"600"),
            (b"content-length", b"0"),
        ]
        await reply({"type": "http.response.start", "status": 204, "headers": headers})
        await reply({"type": "http.response.body", "body": b"", "more_body": False})


def _check_headers(scope: Any, asking: Asking) -> None:
    raw = scope["headers"]
    sizes = [len(name) + len(value) + 4 for name, value in raw]
    if (
        len(raw) > limits.HEADER_COUNT.value
        or sum(sizes) > limits.HEADER_TOTAL_BYTES.value
        or max(sizes, default=0) > limits.HEADER_BYTES.value
    ):
        raise HeadersTooLarge("The request headers are too large.")
    if not asking.path.startswith("/") or "\0" in asking.path:
        raise MalformedHttp("The request target must be an absolute path.")
    if sum(name.lower() == b"host" for name, _ in raw) > 1:
        raise MalformedHttp("A request cannot have two Host headers.")


def _after_body(receive: Receive) -> Receive:
    """What the app receives: an empty body (it is in the context), and later the disconnect."""
    delivered = False

    async def next_message() -> Any:
        nonlocal delivered
        if not delivered:
            delivered = True
            return {"type": "http.request", "body": b"", "more_body": False}
        return await receive()

    return next_message
