"""The ends of a daemon in short; a hundred of each by hand (ops/docs/faults.md)."""

import signal

import pytest

from ops.chaos.ends import MOMENTS, end, right


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left(number: signal.Signals, moment: str) -> None:
    outcome = end(number, moment)
    assert right(outcome), outcome


def test_something_left_is_wrong() -> None:
    assert not right({"signal": "SIGKILL", "status": -9, "left": 1})
    assert not right({"signal": "SIGTERM", "status": 70, "left": 0})
