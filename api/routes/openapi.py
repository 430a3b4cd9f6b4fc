"""GET /openapi.json."""

from quart import Quart, Response

from neuron.api.openapi import document
from neuron.api.reply import reply_json


def register(app: Quart) -> None:
    @app.get("/openapi.json")
    async def openapi() -> Response:
        return reply_json(document())
