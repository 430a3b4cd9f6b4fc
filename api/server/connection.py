"""One TCP connection: Hypercorn's, with a time limit on headers and on writes, and a close that cannot hang."""

import asyncio
import socket
import time

from hypercorn.asyncio.task_group import TaskGroup
from hypercorn.asyncio.tcp_server import MAX_RECV, TCPServer
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from neuron.actors import limits
from neuron.api.server.protocol import Http1Protocol

#: Seconds that unsent bytes get after a close.
LINGER_S = 2.0
#: Seconds between two looks at a client that has closed its sending side: first, and at most.
SHORTEST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0
#: State of a socket whose peer has answered with a reset (Linux, TCP_INFO).
_TCP_CLOSE = 7


class Connection(TCPServer):
    """Made by the listener, one for each accepted socket. `write_idle_s` bounds each write."""

    write_idle_s: float = 30.0
    #: True once the client was cut because it did not read.
    cut: bool = False
    #: True once nothing more can be read.
    _gone: bool = False
    protocol: Http1Protocol  # type: ignore[assignment]

    async def run(self) -> None:
        sock = self.writer.get_extra_info("socket")
        try:
            client = parse_socket_addr(sock.family, sock.getpeername())
            server = parse_socket_addr(sock.family, sock.getsockname())
            async with TaskGroup(self.loop) as task_group:
                self._task_group = task_group
                self.protocol = Http1Protocol(
                    self.app,
                    self.config,
                    self.context,
                    task_group,
                    ConnectionState({"connection": self}),
                    False,
                    client,
                    server,
                    self.protocol_send,
                )
                await self.protocol.initiate()
                await self.idle_task.restart(task_group, self._idle_timeout)
                await self._read_data()
                # Else the task group would wait for the idle timer.
                self._gone = True
                await self.idle_task.stop()
        except OSError:
            pass
        finally:
            await self._close()

    def abort(self) -> None:
        """Drop the connection and whatever is still unsent."""
        self.writer.transport.abort()

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, Updated) and self._gone:
            return
        if not isinstance(event, RawData):
            await super().protocol_send(event)
            return
        async with self.send_lock:
            try:
                self.writer.write(event.data)
                async with asyncio.timeout(self.write_idle_s):
                    await self.writer.drain()
            except TimeoutError:
                self.cut = True
                self.abort()
                await self.protocol.handle(Closed())
            except (ConnectionError, RuntimeError):
                await self.protocol.handle(Closed())

    async def _read_data(self) -> None:
        deadline: float | None = None
        while not self.reader.at_eof():
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                async with asyncio.timeout(left):
                    data = await self.reader.read(MAX_RECV)
            except TimeoutError:
                await self.protocol.refuse(408)
                break
            except OSError:
                break
            await self.protocol.handle(RawData(data))
            if not self.protocol.waiting_for_headers:
                deadline = None
            elif deadline is None:
                deadline = time.monotonic() + limits.HEADER_SECONDS.value
        if self.reader.at_eof():
            await self._answer_half_closed()
        await self.protocol.handle(Closed())

    async def _answer_half_closed(self) -> None:
        """The client sends nothing more. Whether it left or waits for its answer shows when something is sent to it."""
        pause = SHORTEST_PAUSE_S
        while self.protocol.answering and await self.protocol.knock():
            await asyncio.sleep(pause)
            if self._is_reset():
                return
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _is_reset(self) -> bool:
        try:
            info = self.writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        except OSError:
            return True
        return self.writer.transport.is_closing() or info[0] == _TCP_CLOSE

    async def _close(self) -> None:
        timer = self.loop.call_later(LINGER_S, self.abort)
        try:
            await super()._close()
        finally:
            timer.cancel()
