"""Row 53: idle connections above the cap are closed, those below are kept. Ten thousand by hand."""

from neuron.actors import limits
from ops.chaos.idle import run


def test_row_53_idle_connections_are_capped() -> None:
    figures = run(connections=limits.CONNECTIONS.value + 80, seconds=2.0)
    #: One more is the connection that asks.
    assert (figures["kept"], figures["closed"]) == (limits.CONNECTIONS.value - 1, 81)
    assert figures["health_ms"]["count"] > 0
    assert figures["daemon_bytes"] < 256 << 20
