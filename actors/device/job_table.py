"""Jobs that one device process has been given and not yet answered, in order. Owned by its DeviceProcess."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from neuron.actors.device import jobs
from neuron.actors.device.jobs import Fault, Job, Progress, Reply
from neuron.actors.device.phases import FORWARDS, LOADS
from neuron.actors.device.replies import error_from_fault
from neuron.runtime.errors import NeuronError, ProtocolError

OnProgress = Callable[[Progress], None]
ErrorFactory = Callable[[], NeuronError]

_TERMINAL: dict[type, type] = {
    jobs.Hello: jobs.Ready,
    jobs.QueryVram: jobs.Vram,
    **dict.fromkeys(LOADS, jobs.Loaded),
}


class Awaited:
    """An answer that may be awaited later: submit first, then do other work, then `reply()`."""

    __slots__ = ("_answer", "_arrived", "abandoned", "job")

    def __init__(self, job: Job) -> None:
        self.job = job
        #: Nobody waits any more; the answer is counted as late and dropped.
        self.abandoned = False
        self._answer: Reply | ErrorFactory | None = None
        self._arrived: asyncio.Future[None] | None = None

    @property
    def done(self) -> bool:
        return self._answer is not None

    async def reply(self) -> Reply:
        """The terminal reply. Raises the typed error of a Fault or of the process's death.

        A caller that is cancelled here leaves the job to run; its answer reaches nobody else, though it may be
        waited for again.
        """
        self.abandoned = False
        if self._answer is None:
            # A future of this call alone: its cancellation takes nothing from a later one.
            self._arrived = asyncio.get_running_loop().create_future()
            try:
                await self._arrived
            except asyncio.CancelledError:
                self.abandoned = True
                raise
            finally:
                self._arrived = None
        answer = self._answer
        assert answer is not None
        if isinstance(answer, Fault):
            raise error_from_fault(answer)
        if isinstance(answer, msgspec.Struct):
            return answer
        raise answer()

    def settle(self, answer: Reply | ErrorFactory) -> None:
        if self._answer is not None:
            return
        self._answer = answer
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)


class PendingReply(Awaited):
    """One job of one process."""

    __slots__ = ("begun_at", "limit_s", "on_answer", "on_progress", "peers", "started_at")

    def __init__(self, job: Job, limit_s: float, on_progress: OnProgress | None) -> None:
        super().__init__(job)
        #: Seconds the device process may take, from the moment it can begin (loads: between two Progress).
        self.limit_s = limit_s
        self.on_progress = on_progress
        self.started_at = time.monotonic()
        #: When the process could begin; None while other jobs are before this one.
        self.begun_at: float | None = None
        #: The same job on the other ranks of a group, which wait for each other.
        self.peers: Sequence[PendingReply] = ()
        #: Called once with the answer, beside whoever awaits it.
        self.on_answer: Callable[[Reply | ErrorFactory], None] | None = None

    @property
    def since(self) -> float | None:
        """Monotonic seconds from which the limit counts; None while one of the ranks cannot begin."""
        since = self.started_at
        for peer in self.peers:
            if peer.begun_at is None:
                return None
            since = max(since, peer.begun_at)
        return since

    def begin(self) -> None:
        self.started_at = self.begun_at = time.monotonic()

    def settle(self, answer: Reply | ErrorFactory) -> None:
        first = self._answer is None
        super().settle(answer)
        if first and self.on_answer is not None:
            self.on_answer(answer)


@dataclass(slots=True)
class ReplyCounters:
    """`late`: the caller had left. `stale`: a second answer to a job that was answered before."""

    late: int = 0
    stale: int = 0


@dataclass(slots=True)
class JobTable:
    """First in, first out: the process answers jobs in the order it was given them."""

    counters: ReplyCounters
    _pending: OrderedDict[int, PendingReply] = field(default_factory=OrderedDict)
    _last_id: int = 0

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def head(self) -> PendingReply | None:
        """The job that the process works on."""
        return next(iter(self._pending.values()), None)

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def add(self, pending: PendingReply) -> None:
        if not self._pending:
            pending.begin()
        self._pending[pending.job.job] = pending

    def deliver(self, reply: Reply) -> PendingReply | None:
        """Match one reply to the oldest job; returns the job when this settled it.

        A further answer to a job that is over is counted and dropped. Raises ProtocolError for an answer to a
        job never given, out of order, of the wrong type or with another stamp.
        """
        pending = self.head
        if pending is None or reply.job != pending.job.job:
            if 0 < reply.job <= self._last_id and reply.job not in self._pending:
                self.counters.stale += 1
                return None
            raise ProtocolError("The device process answered a job that it was not given.")
        if isinstance(reply, Progress):
            self._progress(pending, reply)
            return None
        _check(pending.job, reply)
        del self._pending[reply.job]
        if pending.abandoned:
            self.counters.late += 1
        pending.settle(reply)
        following = self.head
        if following is not None:
            following.begin()
        return pending

    def _progress(self, pending: PendingReply, reply: Progress) -> None:
        if not isinstance(pending.job, LOADS):
            raise ProtocolError("The device process reported progress of a job that has none.")
        pending.started_at = time.monotonic()
        if pending.on_progress is not None and not pending.abandoned:
            pending.on_progress(reply)

    def fail_all(self, error: ErrorFactory) -> None:
        while self._pending:
            self._pending.popitem(last=False)[1].settle(error)


def _check(job: Job, reply: Reply) -> None:
    if isinstance(reply, Fault):
        return
    expected = _TERMINAL.get(type(job), jobs.Done)
    if isinstance(job, FORWARDS) and job.slot is not None:
        if not isinstance(reply, jobs.Logits):
            raise ProtocolError("The device process answered with the wrong kind of reply.")
        if (reply.slot, reply.stamp) != (job.slot, job.stamp):
            raise ProtocolError("The device process answered with another slot or stamp than it was given.")
    elif not isinstance(reply, expected):
        raise ProtocolError("The device process answered with the wrong kind of reply.")
