"""One life of a device process, seen from the daemon: link, jobs, watchdog and end. Owned by DeviceActor."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import anyio

from neuron.actors.device import deaths, jobs
from neuron.actors.device.deaths import Death
from neuron.actors.device.job_table import JobTable, OnProgress, PendingReply, ReplyCounters
from neuron.actors.device.jobs import ArchHandle, Fault, Job, Ready, Reply
from neuron.actors.device.phases import FORWARDS, LOADS, phase_of
from neuron.actors.settings import LimitSettings
from neuron.runtime.errors import NeuronError, ProtocolError
from neuron.runtime.link import Link, LinkClosed
from neuron.runtime.logs import get_logger

START_SECONDS = 120.0
"""From the start of the process to Ready, and for joining a group: importing the device library, making its context."""
ENCODE_STEPS = 4
"""Deadline of one image, in those of a step."""
DROP_SECONDS = 30.0
BEAT_SECONDS = 1.0
STOPPED_BEATS = 2.0
"""A process that is stopped (SIGSTOP, debugger) is given up after this many missed beats."""
SILENT_BEATS = 10.0
"""One that is idle and merely silent is given more: on a starved machine beats come late."""
TICK_SECONDS = 0.25

_log = get_logger("neuron.actors.device")


class ExitLike(Protocol):
    @property
    def signal(self) -> str | None: ...


class Child(Protocol):
    """What is needed of runtime.process.ChildProcess (tests put other programs behind it)."""

    @property
    def pid(self) -> int: ...
    async def wait(self) -> ExitLike: ...
    def kill(self) -> None: ...


class DeviceProcess:
    """Serves jobs until it dies or is ended; it never comes back. `serve` must run as a task for it to work."""

    def __init__(
        self,
        child: Child,
        link: Link[Reply],
        limits: LimitSettings,
        counters: ReplyCounters,
        on_reply: Callable[[Reply, PendingReply | None], None],
        on_end: Callable[[Death], None] = lambda _death: None,
    ) -> None:
        """`on_end` hears of the end before any caller does, and before the process is reaped."""
        self.child = child
        self.ready: Ready | None = None
        self.death: Death | None = None
        self.exit_status: str | None = None
        self.last_seen = time.monotonic()
        self.steps = 0
        #: Set once the process is reaped.
        self.ended = asyncio.Event()
        self._link = link
        self._limits = limits
        self._table = JobTable(counters)
        self._on_reply = on_reply
        self._on_end = on_end
        #: Models whose first forward is over: libraries and compilers are warm.
        self._warm: set[ArchHandle] = set()
        self._retiring = False
        self._dead = asyncio.Event()
        self._drained = asyncio.Event()

    # -- jobs ------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        return len(self._table) == 0

    @property
    def phase(self) -> str:
        head = self._table.head
        return phase_of(None if head is None else head.job)

    def post(
        self, build: Callable[[int], Job], deadline_s: float | None = None, on_progress: OnProgress | None = None
    ) -> PendingReply:
        """Queue one job. Raises the death's error when the process is gone."""
        if self.death is not None:
            raise self.death.error()
        job = build(self._table.next_id())
        try:
            self._link.post(job)
        except LinkClosed:
            # The reader or the exit watch will name the cause in a moment; until then the job waits for it.
            pass
        pending = PendingReply(job, self._limit(job) if deadline_s is None else deadline_s, on_progress)
        self._table.add(pending)
        return pending

    def _limit(self, job: Job) -> float:
        if isinstance(job, LOADS):
            return self._limits.load_stall_seconds
        if isinstance(job, (jobs.Hello, jobs.GroupInit)):
            return START_SECONDS
        if isinstance(job, FORWARDS) and job.handle not in self._warm:
            return max(self._limits.load_stall_seconds, self._limits.step_seconds)
        if isinstance(job, jobs.EncodeImage):
            # A megapixel through a large tower on a CPU takes its time.
            return ENCODE_STEPS * self._limits.step_seconds
        if isinstance(job, (jobs.Drop, jobs.Probe)):
            return max(DROP_SECONDS, self._limits.step_seconds)
        return self._limits.step_seconds

    # -- life ------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Run until the process is reaped. Never raises; what went wrong is `death`."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read)
                tasks.start_soon(self._watch_exit)
                tasks.start_soon(self._watch_clock)
                await self._dead.wait()
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._reap()

    def end(self, death: Death) -> None:
        """Give the process up: every waiting caller gets the error now, SIGKILL follows. The first cause stays."""
        if self.death is not None:
            return
        self.death = death = deaths.stopped() if self._retiring else death
        self._on_end(death)
        self._table.fail_all(death.error)
        self.child.kill()
        self._link.close()
        self._dead.set()

    def retire(self) -> None:
        """It was told to end: whatever its end looks like, it poisons nothing."""
        self._retiring = True

    async def gone(self, within_s: float) -> bool:
        """True once it is reaped; False when it is not after `within_s` seconds."""
        with anyio.move_on_after(within_s):
            await self.ended.wait()
        return self.ended.is_set()

    async def _reap(self) -> None:
        self.end(deaths.stopped())
        started = time.monotonic()
        while True:
            with anyio.move_on_after(5.0):
                self.exit_status = str(await self.child.wait())
                break
            _log.error("device process still alive", pid=self.child.pid, waited_s=round(time.monotonic() - started, 1))
            self.child.kill()
        self.ended.set()

    async def _read(self) -> None:
        try:
            await self._link.run(self._receive)
        except ProtocolError as error:
            self.end(deaths.protocol(error, self.phase))
        except LinkClosed:
            pass  # The stream ended inside a frame: the process died while it wrote.
        except NeuronError as error:
            self.end(deaths.protocol(error, self.phase))
        except Exception as error:
            # A defect of ours while a reply was handled: whoever waits for it would wait for ever.
            _log.error("a reply could not be handled", pid=self.child.pid, phase=self.phase, exc_info=error)
            self.end(deaths.protocol(ProtocolError("A reply of the device process could not be handled."), self.phase))
        finally:
            self._drained.set()
        await self._after_end_of_stream()

    async def _after_end_of_stream(self) -> None:
        """The process is dying, or closed its link and lives on. Its exit says more, so wait for it a little."""
        with anyio.move_on_after(2.0):
            await self._dead.wait()
        self.end(deaths.exited("closed its link", None, self.phase))

    async def _watch_exit(self) -> None:
        status = await self.child.wait()
        # A fault that it sent before it ended is the better cause.
        with anyio.move_on_after(0.5):
            await self._drained.wait()
        self.exit_status = str(status)
        self.end(deaths.exited(str(status), status.signal, self.phase))

    def _receive(self, reply: Reply) -> None:
        self.last_seen = time.monotonic()
        if isinstance(reply, jobs.Beat):
            self.steps = reply.steps
            return
        if isinstance(reply, Fault) and reply.job == 0:
            self.end(deaths.device_fault(reply))
            return
        pending = self._table.deliver(reply) if not isinstance(reply, jobs.ScriptFaultFired) else None
        if isinstance(reply, jobs.Ready):
            self.ready = reply
        elif pending is not None and isinstance(pending.job, FORWARDS) and not isinstance(reply, Fault):
            self._warm.add(pending.job.handle)
        elif pending is not None and isinstance(pending.job, jobs.Drop):
            self._warm.discard(pending.job.handle)
        self._on_reply(reply, pending)
        if isinstance(reply, Fault) and reply.device_fault:
            self.end(deaths.device_fault(reply))

    # -- watchdog --------------------------------------------------------------------------------

    async def _watch_clock(self) -> None:
        before = time.monotonic()
        while True:
            await anyio.sleep(TICK_SECONDS)
            now = time.monotonic()
            lag, before = now - before - TICK_SECONDS, now
            if lag > TICK_SECONDS:
                self._forgive(lag)  # This process slept (stopped, starved): not the device process's fault.
            self._check(now)

    def _forgive(self, lag: float) -> None:
        self.last_seen += lag
        head = self._table.head
        if head is not None:
            head.started_at += lag

    def _check(self, now: float) -> None:
        head = self._table.head
        silent = now - self.last_seen
        since = head.since if head is not None else None
        if head is not None and since is not None and now - since > head.limit_s:
            self.end(deaths.unresponsive(head.limit_s, self.phase))
        elif (head is None or isinstance(head.job, jobs.QueryVram)) and silent > STOPPED_BEATS * BEAT_SECONDS:
            if silent > SILENT_BEATS * BEAT_SECONDS or is_stopped(self.child.pid):
                self.end(deaths.unresponsive(round(silent, 1), "idle"))
        elif silent > max(self._limits.step_seconds, STOPPED_BEATS * BEAT_SECONDS) and is_stopped(self.child.pid):
            # Stopped inside a job with a long limit (a load, a first step): it will not go on by itself.
            self.end(deaths.unresponsive(round(silent, 1), self.phase))


def is_stopped(pid: int) -> bool:
    """True when the process is stopped or traced (Linux /proc state T or t)."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    return False
