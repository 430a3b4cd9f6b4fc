"""Composition of the daemon: listener, registry, signals, and the way down. Called by `neuron.api.serve` only.

The port is bound already; models load in the background. At the end: refuse new work, let the registry end streams and
unload, close the listener.
"""

import asyncio
import gc
import socket
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack

import anyio

import neuron
from neuron.actors.device.spare import Spare
from neuron.actors.registry import Registry
from neuron.actors.settings import Settings
from neuron.api.access import Access
from neuron.api.app import create_app
from neuron.api.routes.facts import version_body
from neuron.api.server.listener import Listener
from neuron.runtime.lifecycle import Deadman, StopSignals, exit_now
from neuron.runtime.logs import get_logger, log_loop_exceptions
from neuron.runtime.notify import Notifier
from neuron.runtime.shm import sweep_stale

_log = get_logger("neuron.serve")
#: Seconds that connections get to send their last bytes once all streams have ended.
_CLOSE_S = 2.0
#: Seconds beyond the drain: ending streams, unloading, stopping device processes (each bounded on its own).
_UNLOAD_S = 50.0
#: Seconds that everything gets to end when a part of the daemon broke.
_ABORT_S = 30.0


def run(
    settings: Settings, access: Access, sock: socket.socket, environment: Mapping[str, str], spare: Spare | None
) -> None:
    """Until a stop signal, which ends the process with status 0. Raises what the daemon failed of."""
    version_body()
    if stale := sweep_stale():
        _log.info("removed shared memory of dead owners", segments=len(stale))
    server = _Server(settings, access, sock, Notifier.from_environment(environment), spare)
    anyio.run(server.run, backend="asyncio")


class _Server:
    def __init__(
        self, settings: Settings, access: Access, sock: socket.socket, notifier: Notifier, spare: Spare | None
    ) -> None:
        self._settings = settings
        self._spare = spare
        self._access = access
        self._sock = sock
        self._notifier = notifier
        self._asked = asyncio.Event()
        self._closing = asyncio.Event()
        self._signal = ""

    async def run(self) -> None:
        log_loop_exceptions(asyncio.get_running_loop())
        registry = Registry(self._settings, spare=self._spare)
        app = create_app(registry, self._access)
        listener = Listener(app, self._sock, write_idle_s=self._settings.limits.write_idle_seconds)
        async with AsyncExitStack() as stack:
            abort = Deadman(_ABORT_S)
            stack.callback(abort.disarm)
            stack.enter_context(StopSignals(self._stop))
            tasks = await stack.enter_async_context(anyio.create_task_group())
            await registry.start(tasks)
            tasks.start_soon(self._listen, listener)
            tasks.start_soon(self._notifier.beat, lambda: True)
            self._announce()
            # What was imported stays: the collector need not look at it again.
            gc.freeze()
            gc.enable()
            try:
                await self._asked.wait()
            except BaseException:
                # A part broke, and all others are being cancelled: what hangs then may not keep us.
                abort.arm()
                raise
            deadman = Deadman(self._settings.server.shutdown_seconds + _UNLOAD_S + _CLOSE_S + 5.0)
            deadman.arm()
            await self._drain(registry, listener)
            # What can end has ended. Leaving this block would wait for threads in native code, without any limit.
            exit_now(0)
        raise RuntimeError("everything was cancelled without a stop signal")

    async def _listen(self, listener: Listener) -> None:
        await listener.serve(self._closing, grace_s=_CLOSE_S)

    def _stop(self, name: str) -> None:
        self._signal = name
        self._asked.set()

    def _announce(self) -> None:
        host, port = self._sock.getsockname()[:2]
        _log.info("listening", host=host, port=port, version=neuron.__version__, models=len(self._settings.models))
        if self._access.open_to_all:
            _log.warning("serving everybody who can reach this host: no keys are configured", host=host)
        self._notifier.ready(f"listening on {host} port {port}")

    async def _drain(self, registry: Registry, listener: Listener) -> None:
        started = time.monotonic()
        seconds = self._settings.server.shutdown_seconds
        _log.info("stopping", signal=self._signal, connections=listener.connections, drain_s=seconds)
        self._notifier.stopping("draining")
        self._notifier.extend_timeout(seconds + _UNLOAD_S)
        await registry.shutdown()
        self._closing.set()
        with anyio.move_on_after(_CLOSE_S + 2.0):
            await listener.closed.wait()
        _log.info("stopped", total_ms=round((time.monotonic() - started) * 1e3))
