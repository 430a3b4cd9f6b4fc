"""The control plane of models: /models and what hangs below it. Listing reads cached values only."""

from quart import Quart, Response, request

from neuron.actors.daemon import Daemon, LoadOutcome, LoadRequest, ModelState
from neuron.actors.errors import ModelNotFound
from neuron.api import bodies
from neuron.api.json_body import decode_object
from neuron.api.reply import current, reply_json
from neuron.api.sse import PING_S, LoadSteps, event_stream, load_frames
from neuron.api.validate.load import read_load, read_model_id
from neuron.api.views import model_body

_TRUE = frozenset({"1", "true", "yes"})
_RESIDENT = (ModelState.READY, ModelState.LOADING, ModelState.RECOVERING, ModelState.POISONED)


def register(app: Quart, daemon: Daemon) -> None:
    @app.get("/models")
    async def models() -> Response:
        everything = request.args.get("all", "").lower() in _TRUE
        infos = daemon.models(everything=everything)
        return reply_json([model_body(info) for info in infos if everything or info.state in _RESIDENT])

    @app.get("/models/<path:model_id>/endpoint")
    async def endpoint(model_id: str) -> Response:
        info = daemon.model(model_id)
        if info.state not in _RESIDENT:
            raise ModelNotFound(model_id)
        return reply_json(bodies.EndpointBody(f"http://localhost:{_port(daemon)}"))

    @app.get("/models/<path:model_id>/capabilities")
    async def capabilities(model_id: str) -> Response:
        return reply_json(bodies.CapabilitiesBody(await daemon.capabilities(model_id)))

    @app.post("/models/load")
    async def load() -> Response:
        wanted = read_load(decode_object(current().body))
        if request.args.get("stream", "").lower() in _TRUE:
            return await _streamed_load(daemon, wanted)
        return reply_json(_outcome(await daemon.load(wanted)))

    @app.post("/models/unload")
    async def unload() -> Response:
        model_id = read_model_id(decode_object(current().body))
        try:
            await daemon.unload(model_id)
        except ModelNotFound as error:
            error.param = "model_id"
            raise
        return reply_json(bodies.StatusBody("unloaded"))


def _port(daemon: Daemon) -> int:
    """Where this request came in: the configured port may be 0."""
    server = request.scope.get("server")
    return int(server[1]) if server and server[1] else daemon.settings.server.port


def _outcome(outcome: LoadOutcome) -> bodies.LoadBody:
    return bodies.LoadBody(status=outcome.status, already=outcome.already)


async def _streamed_load(daemon: Daemon, wanted: LoadRequest) -> Response:
    """Waits a moment for the first step, so that a load refused at once gets its status instead of an event."""
    steps = LoadSteps(daemon.load_progress(wanted))
    current().on_end.append(steps.leave)
    first = await steps.next(PING_S)
    return event_stream(load_frames(first, steps, _outcome))
