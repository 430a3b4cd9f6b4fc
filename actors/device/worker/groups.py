"""Tensor-parallel groups as one rank's process sees them: joining, agreeing on each job, and watched collectives."""

import contextlib
import threading
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from neuron.actors.device.jobs import GroupInit, Job
from neuron.actors.device.worker.classify import RequestFault
from neuron.actors.device.worker.concord import Concord, JoinError
from neuron.actors.device.worker.failpoints import Action, Hit

if TYPE_CHECKING:
    import torch

    from neuron.kernels.collectives import Group

_STORE = "store"


@dataclass(slots=True)
class Membership:
    """This process's place in one group. `collectives`: None while only scripts live in it."""

    group: int
    rank: int
    world_size: int
    concord: Concord
    collectives: "Group | None" = None
    #: Collectives that this rank has passed, over all models.
    passed: int = 0
    #: Of the job that runs.
    accord: "Accord | None" = None

    def close(self) -> None:
        """Peers that still wait for this rank get an error."""
        self.concord.close()
        if self.collectives is not None:
            self.collectives.close()
            self.collectives = None


class Memberships:
    """The groups of one device process by their numbers. The job loop's own."""

    def __init__(self) -> None:
        self._by_number: dict[int, Membership] = {}

    def get(self, number: int) -> Membership | None:
        """None for a model that is alone. Raises RequestFault for a group that this process is not in."""
        if number == 0:
            return None
        membership = self._by_number.get(number)
        if membership is None:
            raise RequestFault("internal_error", f"this process is not in group {number}")
        return membership

    def join(self, job: GroupInit, device: str) -> Membership:
        """Find the other ranks. Raises JoinError."""
        if job.collectives:
            import neuron.kernels.collectives  # noqa: F401 - seconds that are not to count against the limit
        deadline = time.monotonic() + job.timeout_s
        replaced = self._by_number.pop(job.replaces, None)
        if replaced is not None:
            replaced.close()
        membership = self._by_number.get(job.group)
        directory = Path(job.store)
        if membership is None:
            concord = Concord.join(directory, job.rank, job.world_size, job.timeout_s)
            membership = Membership(job.group, job.rank, job.world_size, concord)
        try:
            if job.collectives and membership.collectives is None:
                membership.collectives = _join_collectives(job, directory, device, deadline)
        except BaseException:
            membership.close()
            self._by_number.pop(job.group, None)
            raise
        self._by_number[job.group] = membership
        return membership

    def close(self) -> None:
        while self._by_number:
            self._by_number.popitem()[1].close()


def _join_collectives(job: GroupInit, directory: Path, device: str, deadline: float) -> "Group":
    from neuron.kernels import collectives

    left = max(1.0, deadline - time.monotonic())
    try:
        return collectives.join(directory / _STORE, job.rank, job.world_size, left, device)
    except (RuntimeError, OSError) as error:  # DistBackendError and DistStoreError are RuntimeErrors.
        raise JoinError(f"rank {job.rank} of {job.world_size}: {error}") from None


class Accord:
    """The agreement on one job, made once: before its first collective, or when the `with` block ends.

    A block that fails before it tells the peers, so that nobody waits in a collective for this rank.
    """

    def __init__(self, membership: Membership, job: Job, hit: Hit) -> None:
        self._membership = membership
        self._job = job
        self._hit = hit
        self._settled = False
        self._owner = threading.get_ident()

    def settle(self) -> None:
        """Raises PeerFailedError, DivergenceError, RankGoneError."""
        if self._settled:
            return
        try:
            action = self._hit("tp.agree")
        except Exception:
            self._fail()
            raise
        self._settled = True
        digest = digest_of(self._job, self._membership.passed)
        self._membership.concord.agree(digest ^ (action is Action.DIVERGE))

    def check(self) -> None:
        """While the job goes on and is not settled: has a peer failed? Raises as `settle` does."""
        if not self._settled and threading.get_ident() == self._owner:
            self._membership.concord.check()

    def __enter__(self) -> Self:
        self._membership.accord = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._membership.accord = None
        if kind is None:
            self.settle()
        else:
            self._fail()

    def _fail(self) -> None:
        if not self._settled:
            self._settled = True
            self._membership.concord.fail()


class WatchedCollectives:
    """What a model of a group computes with: the first call of a job waits for the agreement on it.

    The calls are counted, and the count is part of the next agreement.
    """

    def __init__(self, membership: Membership, hit: Hit) -> None:
        if membership.collectives is None:
            raise RequestFault("internal_error", f"group {membership.group} has no collectives")
        self.rank = membership.rank
        self.world_size = membership.world_size
        self._group = membership.collectives
        self._membership = membership
        self._hit = hit

    def _pass(self) -> bool:
        """False: a failpoint wants this call left out."""
        membership = self._membership
        if membership.accord is not None:
            membership.accord.settle()
        if self._hit("tp.collective") is Action.SKIP:
            return False
        membership.passed += 1
        return True

    def begin(self) -> None:
        """A recorded step is replayed without calls: the agreement comes before it."""
        if self._membership.accord is not None:
            self._membership.accord.settle()

    def all_reduce(self, tensor: "torch.Tensor") -> None:
        if self._pass():
            self._group.all_reduce(tensor)

    def gather_columns(self, part: "torch.Tensor") -> "torch.Tensor | None":
        self._pass()
        return self._group.gather_columns(part)


def accord(membership: Membership | None, job: Job, hit: Hit) -> contextlib.AbstractContextManager[Accord | None]:
    """The agreement of a model's group on `job`; None for a model that is alone."""
    return contextlib.nullcontext() if membership is None else Accord(membership, job, hit)


def digest_of(job: Job, passed: int) -> int:
    """What all ranks must have alike: the job but for its number, which each process counts itself, and the count of
    collectives so far."""
    return zlib.crc32(msgspec.msgpack.encode(msgspec.structs.replace(job, job=0)), passed & 0xFFFFFFFF)
