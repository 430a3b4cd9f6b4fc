"""GET /metrics: Prometheus text, from the edge's counters and the daemon's cached figures."""

from prometheus_client import generate_latest
from quart import Quart, Response

from neuron.actors.daemon import Daemon
from neuron.api.collector import DaemonCollector
from neuron.api.traffic import Traffic

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def register(app: Quart, daemon: Daemon, traffic: Traffic) -> None:
    traffic.registry.register(DaemonCollector(daemon))

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(traffic.registry), content_type=_CONTENT_TYPE)
