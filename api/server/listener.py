"""The listening socket and its connections: bind first, serve until told to stop, then close everything in time.

Hypercorn's own `serve` has no cap on connections, always accepts cleartext HTTP/2, and on Python 3.12 waits for open
connections without a limit; so its parts are put together here instead.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections import Counter
from typing import Any

from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.typing import ASGIFramework, LifespanState
from hypercorn.utils import wrap_app

from neuron.actors import limits
from neuron.api.server.bind import BACKLOG
from neuron.api.server.connection import Connection
from neuron.runtime.logs import get_logger

_log = get_logger("neuron.api.listener")


class Listener:
    def __init__(self, app: ASGIFramework, sock: socket.socket, *, write_idle_s: float) -> None:
        self._config = _config()
        self._app = wrap_app(app, 0, "asgi")
        self._sock = sock
        self._write_idle_s = write_idle_s
        self._context = WorkerContext(None)
        self._open: dict[Connection, asyncio.Task[None]] = {}
        self._peers: Counter[str] = Counter()
        self._refused = 0
        #: Set once every connection is gone after a stop.
        self.closed = asyncio.Event()

    @property
    def connections(self) -> int:
        return len(self._open)

    async def serve(self, stop: asyncio.Event, *, grace_s: float) -> None:
        """Accept until `stop`; then close idle connections at once and the others after `grace_s` seconds."""
        # asyncio accepts as often as its backlog says before it looks up, and goes on, a log line each time, when the
        # process has no descriptor left: so it is told 1, and the kernel the real number.
        server = await asyncio.start_server(self._accepted, sock=self._sock, backlog=1)
        self._sock.listen(BACKLOG)
        try:
            await stop.wait()
        finally:
            server.close()
            await self._close_all(grace_s)
            self.closed.set()

    async def _close_all(self, grace_s: float) -> None:
        await self._context.terminated.set()
        tasks = set(self._open.values())
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)
        for connection in list(self._open):
            connection.abort()
        left = [task for task in tasks if not task.done()]
        if left:
            _, stuck = await asyncio.wait(left, timeout=1.0)
            for task in stuck:
                task.cancel()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = _peer(writer)
        if not self._admit(peer):
            writer.transport.abort()
            return
        connection = Connection(
            self._app, asyncio.get_running_loop(), self._config, self._context, LifespanState({}), reader, writer
        )
        connection.write_idle_s = self._write_idle_s
        task = asyncio.current_task()
        assert task is not None
        self._open[connection] = task
        self._peers[peer] += 1
        try:
            await connection.run()
        except Exception as error:
            _log.warning("connection failed", error=type(error).__name__, exc_info=error)
            with contextlib.suppress(Exception):
                connection.abort()
        finally:
            del self._open[connection]
            self._peers[peer] -= 1
            if not self._peers[peer]:
                del self._peers[peer]

    def _admit(self, peer: str) -> bool:
        full = len(self._open) >= limits.CONNECTIONS.value
        if not full and (_is_loopback(peer) or self._peers[peer] < limits.CONNECTIONS_PER_PEER.value):
            return True
        self._refused += 1
        if self._refused & (self._refused - 1) == 0:
            _log.warning("connection refused: too many are open", open=len(self._open), refused_total=self._refused)
        return False


def _config() -> Config:
    config = Config()
    config.accesslog = None
    config.errorlog = logging.getLogger("neuron.api.hypercorn")
    config.include_server_header = False
    config.keep_alive_timeout = limits.KEEP_ALIVE_SECONDS.value
    config.keep_alive_max_requests = 1_000_000
    config.h11_max_incomplete_size = limits.HEADER_TOTAL_BYTES.value
    config.max_app_queue_size = 8
    return config


def _peer(writer: asyncio.StreamWriter) -> str:
    name: Any = writer.get_extra_info("peername")
    return str(name[0]) if isinstance(name, tuple) and name else ""


def _is_loopback(peer: str) -> bool:
    try:
        return ipaddress.ip_address(peer.partition("%")[0]).is_loopback
    except ValueError:
        return False
