"""WatchedCollectives: agreement comes once a job, before the first collective or a recorded step that calls none."""

from typing import Any

import pytest
import torch

from neuron.actors.device.worker.concord import PeerFailedError
from neuron.actors.device.worker.failpoints import inert
from neuron.actors.device.worker.groups import Membership, WatchedCollectives


class Log:
    """Stands for a concord's accord and for a group, and notes who was called."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails = False

    def settle(self) -> None:
        self.calls.append("settle")
        if self.fails:
            raise PeerFailedError("rank 1 could not begin the job")

    def all_reduce(self, tensor: torch.Tensor) -> None:
        self.calls.append("all_reduce")

    def gather_columns(self, tensor: torch.Tensor) -> None:
        self.calls.append("gather")


def watched(log: Any) -> tuple[Membership, WatchedCollectives]:
    membership = Membership(group=3, rank=1, world_size=2, concord=log, collectives=log, accord=log)
    return membership, WatchedCollectives(membership, inert)


def test_a_recorded_step_waits_for_the_agreement_and_counts_nothing() -> None:
    log = Log()
    membership, group = watched(log)
    group.begin()
    assert log.calls == ["settle"]
    assert membership.passed == 0
    group.all_reduce(torch.ones(1))
    assert log.calls[-1] == "all_reduce"
    assert membership.passed == 1


def test_a_peer_that_cannot_begin_stops_the_step_before_it_is_replayed() -> None:
    log = Log()
    log.fails = True
    _, group = watched(log)
    with pytest.raises(PeerFailedError):
        group.begin()
    assert log.calls == ["settle"]


def test_outside_a_job_there_is_nothing_to_agree_on() -> None:
    log = Log()
    membership, group = watched(log)
    membership.accord = None
    group.begin()
    assert log.calls == []
