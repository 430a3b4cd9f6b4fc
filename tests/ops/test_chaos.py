"""A short chaos run, and the proof that a broken invariant would be reported."""

import json
import random

import pytest

from ops.chaos.faults import KINDS, draw
from ops.chaos.runner import Outcome, chaos, summary
from tests.harness.clients import TARGET

SEED = 7


def test_a_short_run_breaks_nothing() -> None:
    with chaos(SEED) as (running, neighbour):
        outcomes = [running.strike() for _ in range(12)]
        assert [outcome.broken for outcome in outcomes if outcome.broken] == []
        report = summary(outcomes, SEED, neighbour.answers, 1.0)
    assert report["injections"] == 12
    assert report["answers_of_the_neighbour"] > 0
    json.dumps(report)


def test_a_broken_invariant_is_reported() -> None:
    """Negative control: something unloads the target in the middle of a row."""
    with chaos(SEED) as (running, _):
        running._held.daemon.unload(TARGET)
        outcome = Outcome(1, 0, "planted", "any", 0.0)
        running._check(outcome)
        assert outcome.broken != []


def test_the_seed_decides() -> None:
    first, second = random.Random(SEED), random.Random(SEED)
    assert [draw(first) for _ in range(100)] == [draw(second) for _ in range(100)]


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_every_kind_can_be_drawn(number: int) -> None:
    injection = KINDS[number].draw(random.Random(number))
    assert injection.failpoints or injection.signal or injection.leaves
