"""Links between the daemon and a child process: frames of MessagePack over a socketpair, one class for each end.

The daemon holds a `Link` (asyncio, never blocks), the child a `BlockingLink` (plain blocking calls).
"""

import asyncio
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from neuron.runtime.errors import LinkClosed, ProtocolError, WorkerUnresponsive
from neuron.runtime.frames import MAX_FRAME_BYTES, FrameDecoder, FrameEncoder

__all__ = ["MAX_FRAME_BYTES", "BlockingLink", "Link", "LinkClosed", "ProtocolError"]

In = TypeVar("In")

_READ_BYTES = 256 * 1024
MAX_QUEUED_BYTES = 4 * MAX_FRAME_BYTES
"""Bytes that may wait for a peer that does not read."""


class BlockingLink(Generic[In]):
    """The child's end. `send` may be called from any thread; `receive` and `arrived` from one."""

    def __init__(self, sock: socket.socket, decode: Any, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        sock.setblocking(True)
        self._socket = sock
        self._decoder: FrameDecoder[In] = FrameDecoder(decode, max_frame_bytes)
        #: Messages that `arrived` has seen and that are still to be received.
        self._ahead: deque[In] = deque()
        self._encoder = FrameEncoder(max_frame_bytes)
        self._send_lock = threading.Lock()
        # A poll object, not settimeout: the time limit of `receive` must not touch a `send` in another thread.
        self._readable = select.poll()
        self._readable.register(sock.fileno(), select.POLLIN)

    def send(self, message: msgspec.Struct) -> None:
        """Send one frame whole. Blocks while the peer does not read.

        Raises LinkClosed when the peer is gone, ProtocolError when the message is too long.
        """
        with self._send_lock:
            frame = self._encoder.encode(message)
            try:
                self._socket.sendall(frame)
            except OSError as error:
                raise LinkClosed("The link is closed.") from error

    def receive(self, timeout: float | None = None) -> In | None:
        """The next message; None when `timeout` seconds pass without one (a frame begun stays buffered).

        Raises LinkClosed at the end of the stream, ProtocolError on a bad frame.
        """
        while True:
            message = self._ahead.popleft() if self._ahead else self._decoder.next()
            if message is not None:
                return message
            if timeout is not None and not self._readable.poll(timeout * 1000):
                return None
            self._fill()

    def arrived(self) -> Sequence[In]:
        """Messages that have come and that `receive` has not given yet, without waiting for more; they stay to be
        received. For a long piece of work that wants to know whether it is still wanted. Raises as `receive` does.
        """
        while self._readable.poll(0):
            self._fill()
        while (message := self._decoder.next()) is not None:
            self._ahead.append(message)
        return self._ahead

    def _fill(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except OSError as error:
            raise LinkClosed("The link is closed.") from error
        if not data:
            raise LinkClosed("The link ended inside a frame." if self._decoder.partial else "The link is closed.")
        self._decoder.feed(data)

    def close(self) -> None:
        self._socket.close()


class Link(Generic[In]):
    """The daemon's end; lives on one event loop.

    Frames are queued by `post` and written by one state machine, so that a cancelled caller can never leave half a
    frame behind. Frames posted before `run` wait for it.
    """

    def __init__(
        self,
        sock: socket.socket,
        decode: Any,
        *,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_queued_bytes: int = MAX_QUEUED_BYTES,
    ) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._decoder: FrameDecoder[In] = FrameDecoder(decode, max_frame_bytes)
        self._encoder = FrameEncoder(max_frame_bytes)
        self._max_queued_bytes = max_queued_bytes
        self._queue: deque[memoryview] = deque()
        self._queued_bytes = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Future[None] | None = None
        self._on_message: Callable[[In], None] | None = None
        self._closed = False
        self._peer_gone = False
        self._writing = False

    @property
    def closed(self) -> bool:
        return self._closed or self._peer_gone

    async def run(self, on_message: Callable[[In], None]) -> None:
        """Deliver every message to `on_message` until the stream ends or `close` is called, then return.

        Raises LinkClosed when the stream ends inside a frame, ProtocolError on a bad frame, and what `on_message`
        raises. The link is closed in every case. Call once.
        """
        if self._closed:
            raise LinkClosed("The link is closed.")
        if self._ended is not None:
            raise RuntimeError("a link runs once")
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._on_message = on_message
        self._loop.add_reader(self._socket, self._read)
        self._write()
        try:
            await self._ended
        finally:
            self.close()

    def post(self, message: msgspec.Struct) -> None:
        """Queue one frame; returns at once.

        Raises LinkClosed when the link is closed or the peer gone, ProtocolError when the message is too long,
        WorkerUnresponsive when the peer has left too much unread.
        """
        if self.closed:
            raise LinkClosed("The link is closed.")
        frame = self._encoder.encode(message)
        if self._queued_bytes + len(frame) > self._max_queued_bytes:
            raise WorkerUnresponsive("The process at the other end of the link does not read.")
        self._queue.append(memoryview(frame))
        self._queued_bytes += len(frame)
        if self._loop is not None and not self._writing:
            self._write()

    def close(self) -> None:
        """Close at once; what was not yet written is dropped. May be called again."""
        if self._closed:
            return
        self._closed = True
        if self._loop is not None:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        self._socket.close()
        self._queue.clear()
        self._queued_bytes = 0
        self._end(None)

    def _end(self, error: BaseException | None) -> None:
        if self._ended is None or self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._fail(LinkClosed("The link ended inside a frame.") if self._decoder.partial else None)
            return
        assert self._on_message is not None
        self._decoder.feed(data)
        try:
            while not self._closed and (message := self._decoder.next()) is not None:
                self._on_message(message)
        except Exception as error:  # ends `run`, which raises it
            self._fail(error)

    def _fail(self, error: BaseException | None) -> None:
        assert self._loop is not None
        self._peer_gone = True
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._end(error)

    def _write(self) -> None:
        assert self._loop is not None
        try:
            while self._queue:
                frame = self._queue[0]
                sent = self._socket.send(frame)
                self._queued_bytes -= sent
                if sent == len(frame):
                    self._queue.popleft()
                else:
                    self._queue[0] = frame[sent:]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            # Only writing is over: a fault that the peer sent before it died is still to be read.
            self._peer_gone = True
            self._queue.clear()
            self._queued_bytes = 0
        if bool(self._queue) != self._writing:
            self._writing = bool(self._queue)
            if self._writing:
                self._loop.add_writer(self._socket, self._write)
            else:
                self._loop.remove_writer(self._socket)
