"""DeviceGroup: the device processes of a tensor-parallel model as one device. It implements ports.DevicePort.

Every job goes to all ranks in one moment, so that their order is the same everywhere; an answer is given when all have
answered. One rank's end, or its difference from the others, ends all of them, with the cause that was first.
"""

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Protocol

import anyio
import msgspec

from neuron.actors.daemon import DeviceInfo, PoisonRecord
from neuron.actors.device import deaths, jobs
from neuron.actors.device.deaths import Death
from neuron.actors.device.job_table import ErrorFactory, OnProgress, PendingReply
from neuron.actors.device.jobs import Fault, Job, Ready, Reply
from neuron.actors.device.phases import FORWARDS, LOADS, phase_of
from neuron.actors.device.process import is_stopped
from neuron.actors.device.replies import error_from_fault
from neuron.actors.errors import TpDivergence, TpInitFailed
from neuron.actors.group.ends import End, Ends
from neuron.actors.group.judge import Divergence, judge
from neuron.actors.group.meeting import meeting_place
from neuron.actors.group.pending import GroupPending, SlowestProgress
from neuron.actors.group.shards import LEADER, mends, ranks_of, shard
from neuron.actors.ports import BuildJob
from neuron.runtime.errors import NeuronError, WorkerDied
from neuron.runtime.logs import get_logger

JOIN_SECONDS = 20.0
"""The ranks find each other within this time, once each has its libraries."""
LAG_SECONDS = 5.0
"""Ranks meet in every layer of a step: one that is so much later than another will not come."""
FAULT_SECONDS = 2.0
"""Once a rank has refused a job, the others get so long to answer it too; a load takes its next look at its peers."""
FAULT_LOAD_SECONDS = 10.0
TICK_SECONDS = 0.2

_log = get_logger("neuron.actors.group")


class Rank(Protocol):
    """What a group needs of device.actor.DeviceActor."""

    device_id: str

    @property
    def running(self) -> bool: ...
    async def ensure_started(self) -> Ready: ...
    def post(
        self, build: BuildJob, *, deadline_s: float | None = None, on_progress: OnProgress | None = None
    ) -> PendingReply: ...
    def info(self) -> DeviceInfo: ...
    def kill(self, reason: str, error: ErrorFactory, *, crash: bool = True) -> None: ...
    def on_death(self, callback: Callable[[PoisonRecord], None]) -> None: ...
    def on_end(self, callback: Callable[[Death], None]) -> None: ...


class DeviceGroup:
    """`ranks` in order; the first leads. `numbers` gives every meeting of processes a number of its own.

    Belongs to the event loop. The processes may hold other models too: they are ended with the group all the same.
    """

    def __init__(self, ranks: Sequence[Rank], numbers: Iterator[int]) -> None:
        self.device_ids = tuple(rank.device_id for rank in ranks)
        self._ranks = ranks
        self._numbers = numbers
        self._number = 0
        #: Of the processes that have joined (or are at it); None when they must join anew.
        self._pids: tuple[int | None, ...] | None = None
        self._collectives = False
        self._ends = Ends()
        #: Why the last processes ended, until others join.
        self._ended: End | None = None
        #: An end whose record is still to be told.
        self._untold: End | None = None
        self._handles: set[int] = set()
        self._in_flight: list[GroupPending] = []
        self._callbacks: list[Callable[[PoisonRecord], None]] = []
        self._lock = asyncio.Lock()
        self._ticker: asyncio.TimerHandle | None = None
        for number, rank in enumerate(ranks):
            rank.on_end(functools.partial(self._rank_ended, number))
            rank.on_death(functools.partial(self._rank_died, number))

    # -- life ------------------------------------------------------------------------------------

    async def ensure_started(self) -> Ready:
        """Start the processes that do not run. Raises what DeviceActor.ensure_started raises, of the first rank."""
        started = await _all_of([rank.ensure_started() for rank in self._ranks])
        ready: Ready = started[LEADER]
        return ready

    async def _join(self, *, collectives: bool) -> None:
        """The processes meet, unless they have met. Raises TpInitFailed, or the error of a rank that ended."""
        async with self._lock:
            pids = tuple(rank.info().pid for rank in self._ranks)
            if self._pids == pids and (self._collectives or not collectives):
                return
            before = 0
            if self._pids != pids:
                before, self._number = self._number, next(self._numbers)
                self._ends, self._ended = Ends(), None
                self._collectives = False
                self._handles.clear()
            self._pids = pids
            begun = time.monotonic()
            try:
                await self._meet(collectives, before)
            except BaseException:
                self._pids = None
                raise
            self._collectives = collectives
            _log.info(
                "tensor-parallel group ready",
                devices=self.device_ids,
                pids=pids,
                collectives=collectives,
                elapsed_ms=round((time.monotonic() - begun) * 1e3, 1),
            )

    async def _meet(self, collectives: bool, before: int) -> None:
        size, number = len(self._ranks), self._number
        with meeting_place() as place:
            store = str(place)
            await self._post_each(
                [
                    jobs.GroupInit(0, number, rank, size, store, JOIN_SECONDS, collectives, before)
                    for rank in range(size)
                ]
            ).reply()
            counted = await self._post_each([jobs.GroupSanity(0, number)] * size).reply()
        if not isinstance(counted, jobs.Done) or counted.value != size:
            raise TpInitFailed("The ranks of the group do not add up.")

    # -- jobs ------------------------------------------------------------------------------------

    async def call(
        self, build: BuildJob, *, deadline_s: float | None = None, on_progress: OnProgress | None = None
    ) -> Reply:
        """As DeviceActor.call. A load makes the ranks meet first."""
        job = build(0)
        if isinstance(job, LOADS):
            await self._join(collectives=not isinstance(job, jobs.LoadScripted))
        return await self.post(build, deadline_s=deadline_s, on_progress=on_progress).reply()

    def post(
        self, build: BuildJob, *, deadline_s: float | None = None, on_progress: OnProgress | None = None
    ) -> GroupPending:
        """As DeviceActor.post, for every rank that the job concerns. Raises the error of the group's end."""
        if self._ended is not None:
            raise self._ended.death.error()
        if self._pids is None:
            raise _not_running()
        job = shard(build(0), self._number)
        count = len(ranks_of(job, len(self._ranks)))
        return self._post_each([job] * count, deadline_s, on_progress)

    def _post_each(
        self, by_rank: Sequence[Job], deadline_s: float | None = None, on_progress: OnProgress | None = None
    ) -> GroupPending:
        if not all(rank.running for rank in self._ranks):
            raise _not_running()
        pending = GroupPending(by_rank[LEADER], len(by_rank), self._all_answered, self._gone)
        slowest = None if on_progress is None else SlowestProgress(len(by_rank), on_progress, pending)
        posted: list[PendingReply] = []
        for number, job in enumerate(by_rank):
            build = functools.partial(_numbered, job)
            note = None if slowest is None else functools.partial(slowest.note, number)
            posted.append(self._ranks[number].post(build, deadline_s=deadline_s, on_progress=note))
        pending.watch(posted)
        self._in_flight.append(pending)
        self._watch()
        return pending

    def _all_answered(self, pending: GroupPending) -> None:
        job, answers = pending.job, pending.whole
        answer = judge(job, answers)
        if isinstance(answer, Divergence):
            self._end(self._at(answer.rank, _diverged(answer.text, phase_of(job))))
            return
        self._in_flight.remove(pending)
        if isinstance(answer, jobs.Loaded) and isinstance(job, LOADS):
            self._handles.add(job.handle)
        elif isinstance(job, jobs.Drop):
            self._handles.discard(job.handle)
        mend = mends(job)
        if isinstance(answer, Fault) and mend is not None and not all(isinstance(one, Fault) for one in answers):
            self._mend(mend)
        pending.settle(answer)

    def _mend(self, job: Job) -> None:
        """Some ranks did what others refused: all of them forget it, before anything else is asked."""
        if self._pids is not None and all(rank.running for rank in self._ranks):
            self._post_each([job] * len(self._ranks))

    # -- ends ------------------------------------------------------------------------------------

    @property
    def _active(self) -> bool:
        return bool(self._handles or self._in_flight)

    def _at(self, rank: int, death: Death) -> End:
        return End(rank, self.device_ids[rank], death)

    def _rank_ended(self, rank: int, death: Death) -> None:
        """A process of the group is at its end; its callers and the other ranks do not know yet."""
        if self._pids is None:
            return
        if death.expected or not self._active:
            self._pids = None  # Nothing is lost; the next load makes the ranks meet anew.
            return
        if death.reason == "worker_unresponsive":
            rank = next((number for number in range(len(self._ranks)) if self._is_stopped(number)), rank)
        end = self._ends.hear(self._at(rank, death), time.monotonic())
        if end is not None:
            self._end(end)
        else:
            self._watch()

    def _gone(self, pending: GroupPending, answer: ErrorFactory) -> None:
        """A rank's process ended with this job in hand. While the cause is in doubt the job waits for it."""
        if not self._ends.doubtful:
            self._in_flight.remove(pending)
            pending.settle(answer)

    def _end(self, end: End) -> None:
        """All ranks end for this cause; whoever waits gets its error now."""
        self._ends.decided = end
        self._ended = self._untold = end
        self._pids = None
        self._handles.clear()
        error = end.death.error
        in_flight, self._in_flight = self._in_flight, []
        for pending in in_flight:
            pending.settle(error)
        public = end.public
        _log.error(
            "tensor-parallel group ended",
            devices=self.device_ids,
            rank=end.rank,
            device=end.device_id,
            reason=public.reason,
            phase=public.phase,
        )
        for number, rank in enumerate(self._ranks):
            if number == end.rank:
                rank.kill(end.death.reason, error)
            else:
                rank.kill(f"group_ended: {public.reason}", error, crash=False)

    def _rank_died(self, rank: int, record: PoisonRecord) -> None:
        """A process is reaped: the record of the rank that was the cause is the group's."""
        end = self._untold
        if end is None or end.rank != rank:
            return
        self._untold = None
        death = end.public
        told = msgspec.structs.replace(
            record, reason=death.reason, code=death.code, phase=death.phase or record.phase, rank=rank
        )
        for callback in tuple(self._callbacks):
            callback(told)

    def kill(self, reason: str, error: Callable[[], NeuronError]) -> None:
        """End all ranks although they work: callers get `error()`."""
        if self._pids is not None:
            self._end(self._at(LEADER, deaths.killed(reason, error, "")))

    def on_death(self, callback: Callable[[PoisonRecord], None]) -> None:
        """Call `callback` once for each unexpected end of a group that held a model or worked, with its cause."""
        self._callbacks.append(callback)

    # -- ranks that do not come ------------------------------------------------------------------

    def _watch(self) -> None:
        if self._ticker is None:
            loop = asyncio.get_running_loop()
            due = time.monotonic() + TICK_SECONDS
            self._ticker = loop.call_later(TICK_SECONDS, self._tick, due)

    def _tick(self, due: float) -> None:
        self._ticker = None
        now = time.monotonic()
        late = now - due
        if late > TICK_SECONDS:  # This process slept: answers may be waiting to be read.
            for pending in self._in_flight:
                pending.first_at = None if pending.first_at is None else pending.first_at + late
        overdue = self._ends.overdue(now)
        if overdue is not None:
            self._end(overdue)
        for pending in tuple(self._in_flight):
            lagging_since = pending.lagging_since
            if lagging_since is not None and pending in self._in_flight:
                self._check(pending, now - lagging_since)
        if self._in_flight or self._ends.doubtful:
            self._watch()

    def _check(self, pending: GroupPending, waited_s: float) -> None:
        """For `waited_s` a rank has not answered what another has."""
        job, silent, refused = pending.job, pending.silent[0], pending.fault
        if refused is not None:
            rank, fault = refused
            if waited_s > (FAULT_LOAD_SECONDS if isinstance(job, LOADS) else FAULT_SECONDS):
                late = isinstance(job, jobs.GroupInit)
                self._end(self._at(silent if late else rank, _refused(fault, phase_of(job))))
        elif isinstance(job, FORWARDS) and waited_s > LAG_SECONDS:
            if self._is_stopped(silent):
                self._end(self._at(silent, deaths.unresponsive(round(waited_s, 1), phase_of(job))))
            else:
                self._end(self._at(silent, _diverged("it did not finish a step that its peers did", phase_of(job))))

    def _is_stopped(self, rank: int) -> bool:
        pid = self._ranks[rank].info().pid
        return pid is not None and is_stopped(pid)

    # -- cached facts ----------------------------------------------------------------------------

    def info(self) -> DeviceInfo:
        """The leader's, with the memory of the rank that has least, and the state of the one that is worst off."""
        infos = [rank.info() for rank in self._ranks]
        tightest = min(infos, key=lambda info: info.vram_free_mb)
        unready = next((info.state for info in infos if info.state != "ready"), "ready")
        return msgspec.structs.replace(
            infos[LEADER],
            state=unready,
            vram_free_mb=tightest.vram_free_mb,
            vram_used_mb=tightest.vram_used_mb,
            vram_total_mb=tightest.vram_total_mb,
        )


async def _all_of(works: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    """All at once and to their ends. Raises the first error in order.

    Not asyncio.gather: what that raises when it is cancelled need not be the cancellation, and one that belongs to no
    scope would end the daemon.
    """
    results: list[Any] = [None] * len(works)

    async def run(place: int, work: Coroutine[Any, Any, Any]) -> None:
        try:
            results[place] = await work
        except Exception as error:
            results[place] = error

    async with anyio.create_task_group() as tasks:
        for place, work in enumerate(works):
            tasks.start_soon(run, place, work)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def _numbered(job: Job, number: int) -> Job:
    return msgspec.structs.replace(job, job=number)


def _not_running() -> NeuronError:
    return WorkerDied("The device processes of the group are not running.")


def _diverged(text: str, phase: str) -> Death:
    return Death(f"tp_divergence: {text}", lambda: TpDivergence("The ranks of the model's group disagree."), 0, phase)


def _refused(fault: Fault, phase: str) -> Death:
    """A rank answered with a Fault and the others do not answer any more: what they would have to be told is lost."""
    reason = deaths.device_fault(fault).reason
    return Death(reason, lambda: error_from_fault(fault), fault.code, phase)
