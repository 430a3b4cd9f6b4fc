"""Team: every thread runs, barriers hold, an error comes back, the threads end."""

import os
import threading
from pathlib import Path

import pytest

from neuron.kernels.threads import Contention, Team, default_threads, meet


def test_every_thread_runs_once() -> None:
    team = Team(3)
    seen: list[tuple[int, int, str]] = []
    team.run(lambda thread, threads, word: seen.append((thread, threads, word)), "x")
    assert sorted(seen) == [(0, 3, "x"), (1, 3, "x"), (2, 3, "x")]
    team.close()


def test_barriers_can_be_met_again_and_again() -> None:
    team = Team(4)
    for _ in range(50):
        team.run(meet, team.barrier_state)
    team.close()


def test_an_error_of_another_thread_is_raised_and_the_team_goes_on() -> None:
    team = Team(2)

    def fail(thread: int, threads: int) -> None:
        if thread == 1:
            raise RuntimeError("thread 1")

    with pytest.raises(RuntimeError, match="thread 1"):
        team.run(fail)
    team.run(meet, team.barrier_state)
    team.close()


def test_no_thread_is_left_after_close() -> None:
    before = threading.active_count()
    team = Team(4)
    assert threading.active_count() == before + 3
    team.close()
    team.close()
    assert threading.active_count() == before


def test_a_team_shrinks_while_its_cores_are_taken_and_grows_again() -> None:
    account = [0, 0]
    team = Team(4, lambda: (account[0], account[1]))

    def after(ran_ms: int, waited_ms: int) -> int:
        account[0] += ran_ms * 1_000_000
        account[1] += waited_ms * 1_000_000
        team.adapt()
        seen: list[tuple[int, int]] = []
        team.run(lambda thread, threads: seen.append((thread, threads)))
        assert sorted(seen) == [(thread, team.active) for thread in range(team.active)]
        return team.active

    assert after(100, 0) == 4
    assert after(50, 50) == 2
    assert after(5, 5) == 2, "too little was seen to tell"
    assert after(10, 190) == 1
    assert after(0, 100) == 1
    assert after(100, 5) == 4
    team.close()


def test_without_an_account_of_the_kernel_all_threads_are_used() -> None:
    team = Team(2, lambda: None)
    assert not team.adapt()
    assert team.active == 2
    team.close()


def test_the_kernel_tells_running_from_waiting() -> None:
    meter = Contention()
    first = meter.read()
    if first is None:
        pytest.skip("this kernel keeps no account of waiting threads")
    while (second := meter.read()) is not None and second[0] == first[0]:
        pass
    assert second is not None
    assert second[0] > first[0]
    assert second[1] >= first[1]
    meter.close()


@pytest.mark.parametrize(
    ("text", "threads"),
    [("150000 100000\n", 2), ("1000 100000\n", 1), ("1600000 100000\n", 8), ("max 100000\n", 8), ("", 8)],
)
def test_a_container_with_less_time_gets_fewer_threads(
    text: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    limit = tmp_path / "cpu.max"
    limit.write_text(text)
    assert default_threads(limit) == threads
    assert default_threads(tmp_path / "none") == 8
