"""Agreements of a group's ranks, over real sockets with a thread for each rank."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from neuron.actors.device.worker.concord import (
    Concord,
    DivergenceError,
    JoinError,
    PeerFailedError,
)
from neuron.kernels.local_ranks import RankGoneError

WAIT_S = 10.0


def each(count: int, work: Callable[[int], object]) -> list[object]:
    """What `work(rank)` gave or raised, all ranks at once."""
    results: list[object] = [None] * count

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert not any(thread.is_alive() for thread in threads)
    return results


def joined(directory: Path, count: int) -> list[Concord]:
    found = each(count, lambda rank: Concord.join(directory, rank, count, WAIT_S))
    return [rank for rank in found if isinstance(rank, Concord)]


@pytest.fixture(name="ranks", params=[2, 4])
def _ranks(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[list[Concord]]:
    ranks = joined(tmp_path, request.param)
    assert len(ranks) == request.param
    yield ranks
    for rank in ranks:
        rank.close()


def test_all_agree_over_and_over(ranks: list[Concord]) -> None:
    for digest in range(50):
        found = each(len(ranks), lambda rank, d=digest: ranks[rank].agree(d))  # type: ignore[misc]
        assert found == [None] * len(ranks)


def test_a_group_that_agrees_for_months_goes_on(tmp_path: Path) -> None:
    """At a thousand jobs a second the count passes 32 bits after 50 days."""
    ranks = joined(tmp_path, 2)
    for rank in ranks:
        rank._serial = (1 << 32) - 2
    for digest in range(4):
        assert each(2, lambda rank, d=digest: ranks[rank].agree(d)) == [None, None]  # type: ignore[misc]
    for rank in ranks:
        rank.close()


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_cannot_begin_keeps_nobody_waiting(ranks: list[Concord], failing: int) -> None:
    def work(rank: int) -> None:
        if rank == failing:
            return ranks[rank].fail()
        ranks[rank].agree(7)

    found = each(len(ranks), work)
    assert found[failing] is None
    others = [error for rank, error in enumerate(found) if rank != failing]
    assert all(isinstance(error, PeerFailedError) and f"rank {failing}" in str(error) for error in others)
    # Whatever was said of that job is passed over in the next one.
    assert each(len(ranks), lambda rank: ranks[rank].agree(8)) == [None] * len(ranks)


def test_another_job_on_the_last_rank(ranks: list[Concord]) -> None:
    last = len(ranks) - 1
    found = each(len(ranks), lambda rank: ranks[rank].agree(2 if rank == last else 1))
    assert all(isinstance(error, DivergenceError) and f"rank {last}" in str(error) for error in found)


def test_a_rank_that_is_a_job_ahead(ranks: list[Concord]) -> None:
    ranks[1]._serial += 1

    def work(rank: int) -> None:
        try:
            ranks[rank].agree(1)
        finally:
            if rank == 0:
                ranks[0].close()  # as its process would end

    found = each(len(ranks), work)
    assert isinstance(found[0], DivergenceError)
    assert all(isinstance(error, RankGoneError) for error in found[1:])


def test_the_end_of_a_rank_is_seen_by_those_who_wait(ranks: list[Concord]) -> None:
    def work(rank: int) -> None:
        if rank == 1:
            time.sleep(0.05)
            return ranks[1].close()
        ranks[rank].agree(1)

    found = each(2, work)
    assert isinstance(found[0], RankGoneError)


def test_a_look_during_a_long_job(ranks: list[Concord]) -> None:
    for rank in ranks:
        rank.check()
    ranks[1].fail()
    with pytest.raises(PeerFailedError, match="rank 1"):
        _until(ranks[0].check)
    ranks[0].fail()
    for rank in ranks[2:]:
        with pytest.raises(PeerFailedError):
            _until(rank.check)
        rank.fail()
    assert each(len(ranks), lambda rank: ranks[rank].agree(3)) == [None] * len(ranks)


def _until(check: Callable[[], None]) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        check()
        time.sleep(0.005)


def test_a_rank_that_never_comes(tmp_path: Path) -> None:
    with pytest.raises(JoinError, match="rank 0 of 2"):
        Concord.join(tmp_path, 0, 2, 0.1)
    with pytest.raises(JoinError, match="rank 1 of 2"):
        Concord.join(tmp_path / "nowhere", 1, 2, 0.1)


def test_a_directory_with_a_long_name(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 120)
    directory.mkdir()
    ranks = joined(directory, 2)
    assert each(2, lambda rank: ranks[rank].agree(1)) == [None, None]
    for rank in ranks:
        rank.close()
