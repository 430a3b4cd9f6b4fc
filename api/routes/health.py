"""GET /health, /health/live, /health/ready: read cached values, wait for nothing."""

import time

from quart import Quart, Response

from neuron import __version__
from neuron.actors.daemon import Daemon
from neuron.api import bodies
from neuron.api.reply import reply_json
from neuron.api.views import health_body


def register(app: Quart, daemon: Daemon) -> None:
    started = time.monotonic()

    @app.get("/health")
    async def health() -> Response:
        return reply_json(health_body(daemon, uptime_s=time.monotonic() - started, version=__version__))

    @app.get("/health/live")
    async def live() -> Response:
        return reply_json(bodies.StatusBody("ok"))

    @app.get("/health/ready")
    async def ready() -> Response:
        if daemon.draining():
            return reply_json(bodies.StatusBody("draining"), 503)
        if daemon.activation().state != "ready":
            return reply_json(bodies.StatusBody("pre_warming"), 503)
        return reply_json(bodies.StatusBody("ready"))
