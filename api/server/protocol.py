"""Hypercorn's HTTP/1.1 protocol, narrowed: no HTTP/2, no upgrades, no WebSocket, and JSON bodies on refusals."""

import h11
import structlog
from hypercorn.events import Closed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.events import Request, Response
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream

from neuron.actors.errors import BodyTimeout, HeadersTooLarge
from neuron.api.errors import MalformedHttp, error_bytes, error_headers, log_rejection
from neuron.api.request_ids import new_request_id
from neuron.api.wire.encoding import comment
from neuron.runtime.errors import NeuronError


class _RefusedError(Exception):
    """Leaves Hypercorn's event loop for this connection; carries the status to answer with."""

    def __init__(self, status: int) -> None:
        self.status = status


class Http1Protocol(H11Protocol):
    #: The answer under way is a stream of events, which a comment may enter between two of them.
    _event_stream = False

    @property
    def waiting_for_headers(self) -> bool:
        """True while a request has begun to arrive and its headers are not complete."""
        connection = self.connection
        return (
            isinstance(connection, h11.Connection)
            and connection.their_state is h11.IDLE
            and bool(connection.trailing_data[0])
        )

    @property
    def answering(self) -> bool:
        """True while a request that arrived whole has no complete answer yet."""
        connection = self.connection
        if self.stream is None or connection.their_state in {h11.SEND_BODY, h11.ERROR}:
            return False
        return connection.our_state in {h11.SEND_RESPONSE, h11.SEND_BODY}

    async def knock(self) -> bool:
        """Send bytes that mean nothing: a peer that is gone answers with a reset. False: nothing can be sent now."""
        connection = self.connection
        if not isinstance(connection, h11.Connection) or connection.their_http_version in (None, b"1.0"):
            return False
        if connection.our_state is h11.SEND_RESPONSE:
            await self._send_h11_event(h11.InformationalResponse(status_code=100, headers=[]))
        elif connection.our_state is h11.SEND_BODY and self._event_stream:
            await self._send_h11_event(h11.Data(data=comment()))
        else:
            return False
        return True

    async def stream_send(self, event: StreamEvent) -> None:
        if isinstance(event, Response):
            self._event_stream = any(
                name.lower() == b"content-type" and value.startswith(b"text/event-stream")
                for name, value in event.headers
            )
        await super().stream_send(event)

    async def refuse(self, status: int) -> None:
        """Answer what cannot become a request, and close."""
        if self.connection.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            await self._send_error_response(status)
        await self.send(Closed())

    async def _handle_events(self) -> None:
        try:
            await super()._handle_events()
        except _RefusedError as refused:
            await self.refuse(refused.status)

    async def _check_protocol(self, event: h11.Request) -> None:
        # An h2c upgrade is simply not taken up; HTTP/2 with prior knowledge is refused.
        if event.http_version not in (b"1.0", b"1.1"):
            raise _RefusedError(505)

    async def _create_stream(self, request: h11.Request) -> None:
        self.stream = HTTPStream(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        await self.stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=list(request.headers),
                http_version=request.http_version.decode("ascii"),
                method=request.method.decode("ascii").upper(),
                raw_path=request.target,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1

    async def _send_error_response(self, status_code: int) -> None:
        error = _refusal(status_code)
        req_id = new_request_id()
        with structlog.contextvars.bound_contextvars(req_id=req_id):
            log_rejection(error, method="", path="")
        body = error_bytes(error)
        headers = [(name.encode(), value.encode()) for name, value in error_headers(error)]
        headers += [(b"content-length", str(len(body)).encode()), (b"connection", b"close")]
        headers += [(b"x-request-id", req_id.encode()), *self.config.response_headers("h11")]
        # 505 is one of a kind; what else h11 suggests (501 for two transfer codings) is a malformed request.
        status = status_code if status_code == 505 else error.status
        await self._send_h11_event(h11.Response(status_code=status, headers=headers))
        await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())


def _refusal(status: int) -> NeuronError:
    if status == 431:
        return HeadersTooLarge("The request headers are too large.")
    if status == 408:
        return BodyTimeout("The request headers took too long to arrive.")
    if status == 505:
        return MalformedHttp("This server speaks HTTP/1.1 only.")
    return MalformedHttp("This is not a well-formed HTTP/1.1 request.")
