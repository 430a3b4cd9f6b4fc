"""DeviceActor: owns at most one device process at a time; starts it, gives it jobs, notices its end."""

import asyncio
import contextlib
import os
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import anyio
import anyio.abc
import structlog

from neuron.actors.daemon import DeviceInfo, PoisonRecord
from neuron.actors.device import deaths, jobs
from neuron.actors.device.deaths import Death
from neuron.actors.device.devices import device_index, known_devices, parse_device
from neuron.actors.device.host import host_memory, processor_name
from neuron.actors.device.job_table import ErrorFactory, OnProgress, PendingReply, ReplyCounters
from neuron.actors.device.jobs import PROTOCOL_VERSION, Job, Ready, Reply, Vram
from neuron.actors.device.phases import LOADS
from neuron.actors.device.process import Child, DeviceProcess
from neuron.actors.device.script_ledger import ScriptLedger
from neuron.actors.device.spare import WORKER_MODULE, Spare, worker_arguments
from neuron.actors.errors import DeviceUnavailable
from neuron.actors.settings import LimitSettings
from neuron.runtime.errors import NeuronError, RestartLimit, ShuttingDown, WorkerDied
from neuron.runtime.link import Link
from neuron.runtime.logs import Level, get_logger, is_enabled
from neuron.runtime.process import ChildProcess
from neuron.runtime.restarts import RestartBudget

__all__ = ["DeviceActor", "PendingReply", "known_devices", "parse_device"]

CRASH_LIMIT = 3
CRASH_WINDOW_SECONDS = 60.0
"""So many deaths in a row without a completed load, within this time, and starting is refused for the rest of it."""
OOM_LIMIT = 3
OOM_WINDOW_SECONDS = 60.0
"""So many recovered shortages of memory within this time, and the log gives advice."""
VRAM_POLL_SECONDS = 5.0
_NO_FIGURES = Vram(0, 0, 0, 0)
STOP_SECONDS = 20.0
REAP_SECONDS = 3.0
"""A process that was killed is gone after so long, unless its driver holds it: then nobody waits for it any more."""

Spawn = Callable[[str, int], Awaitable[Child]]
"""(device id, fd of the child's end of the link) -> the started process."""
OnDeath = Callable[[PoisonRecord], None]
OnEnd = Callable[[Death], None]

_log = get_logger("neuron.actors.device")


def failpoints_flag(environment: Mapping[str, str]) -> Path | None:
    """The control file that NEURON_FAILPOINTS names (tests only); None in production."""
    value = environment.get("NEURON_FAILPOINTS")
    if not value:
        return None
    _log.warning("failpoints are switched on: this daemon is under test")
    return Path(value)


async def spawn_worker(device_id: str, link_fd: int) -> Child:
    level = next((level for level in sorted(Level) if is_enabled(level)), Level.INFO)
    arguments = worker_arguments(device_id, level.name)
    return await ChildProcess.spawn(WORKER_MODULE, link_fd=link_fd, name=device_id, arguments=arguments)


class DeviceActor:
    """One device. All methods belong to the daemon's event loop; `info` and the counters never wait."""

    def __init__(
        self,
        device_id: str,
        limits: LimitSettings,
        task_group: anyio.abc.TaskGroup,
        *,
        failpoints: Path | None = None,
        spawn: Spawn = spawn_worker,
        spare: Spare | None = None,
    ) -> None:
        self.device_id = device_id
        #: Answers that nobody waited for any more, and second answers; both dropped.
        self.counters = ReplyCounters()
        #: Processes started so far, and those that ended unexpectedly.
        self.starts = 0
        self.deaths = 0
        self._limits = limits
        self._tasks = task_group
        self._failpoints = failpoints_flag(os.environ) if failpoints is None else failpoints
        self._spawn = spawn
        self._spare = spare
        self._process: DeviceProcess | None = None
        self._starting = False
        self._lock = asyncio.Lock()
        self._callbacks: list[OnDeath] = []
        self._end_callbacks: list[OnEnd] = []
        self._crashes = RestartBudget(CRASH_LIMIT, CRASH_WINDOW_SECONDS)
        self._out_of_memory: deque[float] = deque(maxlen=OOM_LIMIT)
        self._vram = _NO_FIGURES
        self._last_ready: Ready | None = None
        self._ledger = ScriptLedger()
        self._closed = False

    # -- life ------------------------------------------------------------------------------------

    async def ensure_started(self) -> Ready:
        """Start the process unless one runs; returns its hello. A dead one is replaced by a fresh one.

        Raises RestartLimit (it died too often), DeviceUnavailable (also when the last process does not go),
        WorkerDied, WorkerUnresponsive, ShuttingDown.
        """
        async with self._lock:
            if self._closed:
                raise ShuttingDown("The device is being shut down.")
            process = self._process
            if process is not None and process.death is None and process.ready is not None:
                return process.ready
            if process is not None and not await process.gone(STOP_SECONDS):
                raise DeviceUnavailable("The device's last process was killed and does not end.")
            self._check_budget()
            self._starting = True
            try:
                return await self._start()
            finally:
                self._starting = False

    async def _start(self) -> Ready:
        child, ours = await self._new_child()
        self.starts += 1
        process = DeviceProcess(child, Link(ours, Reply), self._limits, self.counters, self._on_reply, self._on_end)
        self._process = process
        self._vram = _NO_FIGURES
        self._tasks.start_soon(self._live, process)
        failpoints = None if self._failpoints is None else str(self._failpoints)
        hello = process.post(lambda job: jobs.Hello(job, PROTOCOL_VERSION, self.device_id, failpoints))
        try:
            ready = await hello.reply()
        except NeuronError:
            process.end(deaths.killed("start_failed", _not_running, "start"))
            raise
        except asyncio.CancelledError:
            process.end(deaths.stopped())
            raise
        assert isinstance(ready, Ready)
        if ready.protocol != PROTOCOL_VERSION:
            process.end(deaths.killed("protocol_version", _not_running, "start"))
            raise WorkerDied("The device process speaks another protocol version.")
        self._last_ready = ready
        _log.info("device process ready", device=self.device_id, pid=child.pid, name=ready.name)
        return ready

    async def _new_child(self) -> tuple[Child, socket.socket]:
        """A process and our end of its link: the one that waits for its first use, else a fresh one."""
        spare, self._spare = self._spare, None
        if spare is not None and spare.alive:
            launched, ours = spare.take()
            try:
                return ChildProcess.watch(launched, self.device_id), ours
            except BaseException:
                ours.close()
                raise
        if spare is not None:
            spare.discard()
        ours, theirs = socket.socketpair()
        try:
            return await self._spawn(self.device_id, theirs.fileno()), ours
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()

    def _check_budget(self) -> None:
        if self._crashes.left == 0:
            wait_s = max(1, round(self._crashes.retry_after_s))
            raise RestartLimit("The device process died too often; starting it again waits.", retry_after=wait_s)

    async def _live(self, process: DeviceProcess) -> None:
        # Its lines belong to no request, although one had it started.
        structlog.contextvars.clear_contextvars()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._poll_vram, process)
            await process.serve()
            tasks.cancel_scope.cancel()
        death = process.death
        assert death is not None
        if death.expected:
            return
        self.deaths += 1
        if death.crash:
            self._crashes.spend()
        record = death.record(process.exit_status)
        _log.error(
            "device process died",
            device=self.device_id,
            pid=process.child.pid,
            reason=record.reason,
            code=record.code,
            phase=record.phase,
            exit_status=record.exit_status,
        )
        if process.ready is None:
            return  # It never served: whoever starts it has the error.
        for callback in tuple(self._callbacks):
            try:
                callback(record)
            except Exception:  # One listener's defect must not keep the others from knowing.
                _log.exception("a death callback failed", device=self.device_id)

    async def stop(self, timeout_s: float = STOP_SECONDS) -> None:
        """End the process for good: Shutdown, then SIGKILL when it has not gone within `timeout_s`.

        Returns within REAP_SECONDS more, also when the kernel cannot end it; `info` shows its pid then.
        """
        self._closed = True
        await self._end_process(timeout_s)

    async def release(self, timeout_s: float = STOP_SECONDS) -> None:
        """As `stop`, and with the process goes all it holds; the next `ensure_started` starts a fresh one."""
        async with self._lock:
            await self._end_process(timeout_s)

    async def _end_process(self, timeout_s: float) -> None:
        process = self._process
        if process is None:
            return
        if process.death is None:
            with contextlib.suppress(NeuronError), anyio.move_on_after(timeout_s):
                # Its limit is the scope's: being late for its own end makes no death of it.
                done = process.post(jobs.Shutdown, 2 * timeout_s)
                process.retire()
                await done.reply()
                await process.ended.wait()
            process.end(deaths.stopped())
        if not await process.gone(REAP_SECONDS):
            _log.error("a killed device process does not end", device=self.device_id, pid=process.child.pid)

    def kill(self, reason: str, error: ErrorFactory, *, crash: bool = True) -> None:
        """End the process at once although it works (another rank of its group failed): callers get `error()`.

        Without `crash` it does not count toward the limit of restarts.
        """
        if self._process is not None:
            self._process.end(deaths.killed(reason, error, self._process.phase, crash=crash))

    def _on_end(self, death: Death) -> None:
        for callback in tuple(self._end_callbacks):
            callback(death)

    def on_end(self, callback: OnEnd) -> None:
        """Call `callback` at every end of a process, expected or not, before any caller hears of it."""
        self._end_callbacks.append(callback)

    def on_death(self, callback: OnDeath) -> None:
        """Call `callback` with the record after each unexpected end of a process that had been ready."""
        self._callbacks.append(callback)

    # -- jobs ------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        process = self._process
        return process is not None and process.death is None and process.ready is not None

    def post(
        self,
        build: Callable[[int], Job],
        *,
        deadline_s: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> PendingReply:
        """Queue the job that `build` makes of a fresh job id, without waiting.

        `deadline_s` counts from when the process can begin the job (default: by the kind of job; for loads it is the
        longest time without Progress). Past it the process is killed. Raises the typed error when no process runs.
        """
        process = self._process
        if process is None or process.ready is None:
            raise _not_running()
        return process.post(lambda job: self._ledger.prepare(build(job)), deadline_s, on_progress)

    async def call(
        self,
        build: Callable[[int], Job],
        *,
        deadline_s: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> Reply:
        """`post`, then wait for the terminal reply. Raises NeuronError."""
        return await self.post(build, deadline_s=deadline_s, on_progress=on_progress).reply()

    def _on_reply(self, reply: Reply, pending: PendingReply | None) -> None:
        if isinstance(reply, Vram):
            self._vram = reply
        elif isinstance(reply, jobs.ScriptFaultFired):
            self._ledger.note(reply)
        elif isinstance(reply, jobs.Loaded):
            self._crashes.reset()
        elif isinstance(reply, jobs.Fault) and reply.kind == "oom":
            self._note_out_of_memory()
        if pending is not None and isinstance(pending.job, (*LOADS, jobs.Drop)):
            self._query_vram()

    def _note_out_of_memory(self) -> None:
        now = time.monotonic()
        self._out_of_memory.append(now)
        if len(self._out_of_memory) == OOM_LIMIT and now - self._out_of_memory[0] < OOM_WINDOW_SECONDS:
            self._out_of_memory.clear()
            _log.warning(
                "device memory ran out again and again",
                device=self.device_id,
                advice="lower max_context or prefill_chunk_tokens, or raise min_free_vram_mb",
            )

    # -- cached facts ----------------------------------------------------------------------------

    def _query_vram(self) -> None:
        """Ask only a process that has nothing else to do: figures must never queue before or behind inference."""
        process = self._process
        if process is not None and process.ready is not None and process.death is None and process.idle:
            process.post(jobs.QueryVram)

    async def _poll_vram(self, process: DeviceProcess) -> None:
        while process.death is None:
            self._query_vram()
            await anyio.sleep(VRAM_POLL_SECONDS if process.ready is not None else 0.1)

    def info(self) -> DeviceInfo:
        """Cached; never waits for the process. `state`: idle, starting, ready, dead."""
        process, ready = self._process, self._last_ready
        alive = process is not None and process.death is None
        # What a process held is free once it is gone: its last figures would refuse the load that replaces it.
        vram = self._vram if alive else _NO_FIGURES
        state = "idle"
        if process is not None:
            expected = process.death is not None and process.death.expected
            state = "ready" if self.running else "idle" if expected else "dead"
        if self._starting:
            state = "starting"
        if vram.total_mb == 0 and not self.device_id.startswith("cuda"):
            memory = host_memory()
            vram = Vram(0, memory.used_mb, memory.free_mb, memory.total_mb)
        name = ready.name if ready is not None else self.device_id
        if ready is None and not self.device_id.startswith("cuda"):
            name = processor_name()
        return DeviceInfo(
            index=device_index(self.device_id),
            id=self.device_id,
            name=name,
            state=state,
            pid=process.child.pid if process is not None and not process.ended.is_set() else None,
            compute_capability=ready.compute_capability if ready is not None else "",
            vram_total_mb=vram.total_mb or (ready.vram_total_mb if ready is not None else 0),
            vram_used_mb=vram.used_mb,
            vram_free_mb=vram.free_mb,
            utilization_pct=vram.utilization_pct,
            temp_c=vram.temp_c,
            last_seen_s=round(time.monotonic() - process.last_seen, 3) if process is not None and alive else None,
            starts=self.starts,
            deaths=self.deaths,
        )

    def facts(self) -> Ready | None:
        """What the last process said of itself (names, versions); None before the first."""
        return self._last_ready


def _not_running() -> NeuronError:
    return WorkerDied("The device process is not running.")
