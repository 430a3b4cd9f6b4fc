"""GET /v1/models and /v1/models/{id}, in OpenAI's shape."""

from quart import Quart, Response

from neuron.actors.daemon import Daemon
from neuron.actors.errors import ModelNotFound
from neuron.api import bodies
from neuron.api.reply import reply_json
from neuron.api.views import offered_model, openai_model


def register(app: Quart, daemon: Daemon) -> None:
    @app.get("/v1/models")
    async def listing() -> Response:
        resident = (openai_model(info) for info in daemon.models())
        offered = (offered_model(offered) for offered in daemon.offered())
        return reply_json(bodies.OpenAiModels(object="list", data=(*resident, *offered)))

    @app.get("/v1/models/<path:model_id>")
    async def one(model_id: str) -> Response:
        try:
            return reply_json(openai_model(daemon.model(model_id)))
        except ModelNotFound:
            wanted = model_id.rpartition(":")[2].casefold()
            for offered in daemon.offered():
                if offered.id.casefold() == wanted:
                    return reply_json(offered_model(offered))
            raise
