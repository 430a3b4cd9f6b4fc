"""Team: every thread runs, barriers hold, an error comes back, the threads end."""

import threading

import pytest

from neuron.kernels.threads import Team, meet


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
