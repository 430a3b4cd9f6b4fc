"""GET /requests: which requests run and how the latest ones ended, without anything of their content."""

from quart import Quart, Response

from neuron.actors.daemon import Daemon
from neuron.api import bodies
from neuron.api.reply import reply_json
from neuron.api.views import request_body


def register(app: Quart, daemon: Daemon) -> None:
    @app.get("/requests")
    async def requests() -> Response:
        return reply_json(bodies.RequestsBody(tuple(request_body(record) for record in daemon.request_records())))
