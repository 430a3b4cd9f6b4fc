"""Row 57: two hundred clients at a queue of 32. A minute of it by hand (ops/docs/faults.md)."""

from ops.chaos.overload import run


def test_row_57_answers_and_429_only_and_permits_back_to_zero() -> None:
    figures = run(clients=200, seconds=4.0)
    assert set(figures["statuses"]) == {200, 429}
    assert figures["wrong"] == []
    assert figures["permits_held"] == 0
    assert figures["counted_refusals"] == figures["statuses"][429]
