"""Several things at once, in short; hundreds of bursts by hand (ops/docs/faults.md)."""

from typing import Any

import pytest

from ops.chaos.storm import REFUSALS, WEATHERS, Storm, storm


@pytest.mark.parametrize("weather", sorted(WEATHERS))
def test_nothing_breaks(weather: str) -> None:
    outcome = storm(weather, bursts=4, seed=1)
    assert outcome["broken"] == [], outcome


def test_what_a_client_must_not_see_is_seen() -> None:
    nobody: Any = None
    running = Storm(nobody, seed=1)
    for code in REFUSALS["chat"]:
        running._judge("chat", 503, {"error": {"code": code}})
    assert running.broken == []
    running._judge("chat", 500, {"error": {"code": "internal_error"}})
    running._judge("chat", 200, {"choices": [{"message": {"content": "abcd"}}]})
    assert len(running.broken) == 2
