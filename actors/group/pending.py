"""GroupPending: one job on its way to several ranks, answered when all of them have answered."""

import functools
import time
from collections.abc import Callable, Sequence

from neuron.actors.device.job_table import Awaited, ErrorFactory, PendingReply
from neuron.actors.device.jobs import Fault, Job, Progress, Reply

OnProgress = Callable[[Progress], None]


class GroupPending(Awaited):
    """`on_all(self)` is called when the last rank has answered, `on_gone(self, answer)` when one's process ended."""

    __slots__ = ("_on_all", "_on_gone", "answers", "first_at", "posted")

    def __init__(
        self,
        job: Job,
        count: int,
        on_all: Callable[["GroupPending"], None],
        on_gone: Callable[["GroupPending", ErrorFactory], None],
    ) -> None:
        super().__init__(job)
        self.answers: list[Reply | None] = [None] * count
        #: Monotonic seconds of the first answer of a rank.
        self.first_at: float | None = None
        self.posted: Sequence[PendingReply] = ()
        self._on_all = on_all
        self._on_gone = on_gone

    def watch(self, posted: Sequence[PendingReply]) -> None:
        """`posted` by rank. None of them is answered yet."""
        self.posted = posted
        for rank, pending in enumerate(posted):
            pending.peers = [peer for peer in posted if peer is not pending]
            pending.on_answer = functools.partial(self._answered, rank)

    def _answered(self, rank: int, answer: Reply | ErrorFactory) -> None:
        if self.done:
            return
        if callable(answer):
            self._on_gone(self, answer)
            return
        self.answers[rank] = answer
        if self.first_at is None:
            self.first_at = time.monotonic()
        if None not in self.answers:
            self._on_all(self)

    @property
    def whole(self) -> list[Reply]:
        return [answer for answer in self.answers if answer is not None]

    @property
    def lagging_since(self) -> float | None:
        """When the silent ranks could have answered: another one had, and they could begin. None: not yet."""
        begun = [self.posted[rank].begun_at for rank in self.silent]
        if self.first_at is None or None in begun:
            return None
        return max([self.first_at, *(at for at in begun if at is not None)])

    @property
    def fault(self) -> tuple[int, Fault] | None:
        """The first rank that answered with a Fault."""
        return next(((rank, answer) for rank, answer in enumerate(self.answers) if isinstance(answer, Fault)), None)

    @property
    def silent(self) -> list[int]:
        """Ranks that have not answered."""
        return [rank for rank, answer in enumerate(self.answers) if answer is None]


class SlowestProgress:
    """A load's progress over the ranks: that of the one that is furthest behind."""

    def __init__(self, count: int, report: OnProgress, load: Awaited) -> None:
        self._report = report
        self._load = load
        self._latest: list[Progress | None] = [None] * count
        self._stages: list[str] = []

    def note(self, rank: int, progress: Progress) -> None:
        if progress.stage not in self._stages:
            self._stages.append(progress.stage)
        self._latest[rank] = progress
        known = [latest for latest in self._latest if latest is not None]
        if len(known) == len(self._latest) and not self._load.abandoned:
            self._report(min(known, key=lambda latest: (self._stages.index(latest.stage), latest.fraction)))
