"""GET /v1/models and /v1/models/{id}, in OpenAI's shape."""

from quart import Quart, Response

from neuron.actors.daemon import Daemon
from neuron.api import bodies
from neuron.api.reply import reply_json
from neuron.api.views import openai_model


def register(app: Quart, daemon: Daemon) -> None:
    @app.get("/v1/models")
    async def listing() -> Response:
        models = tuple(openai_model(info) for info in daemon.models())
        return reply_json(bodies.OpenAiModels(object="list", data=models))

    @app.get("/v1/models/<path:model_id>")
    async def one(model_id: str) -> Response:
        return reply_json(openai_model(daemon.model(model_id)))
