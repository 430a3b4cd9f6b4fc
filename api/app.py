"""Composes the HTTP application: Quart with every route, behind the edge. Called by `neuron.api.serve` and by tests."""

from quart import Quart, Response, request
from werkzeug.exceptions import HTTPException

from neuron.actors.daemon import Daemon
from neuron.actors.errors import BodyTooLarge, MethodNotAllowed, RequestError, RouteNotFound, UnsupportedMediaType
from neuron.api.access import Access
from neuron.api.edge import Edge
from neuron.api.errors import error_bytes, error_headers, log_rejection, public
from neuron.api.reply import current
from neuron.api.routes import facts, health, inference, metrics, models, openai_models, openapi, page, requests
from neuron.api.traffic import Traffic
from neuron.runtime.errors import InternalError, NeuronError


def create_app(daemon: Daemon, access: Access) -> Edge:
    """Raises ConfigError when the access settings cannot be used."""
    app = Quart("neuron", static_folder=None)
    # Bodies and times are limited at the edge; the framework's own limits would cut long answers silently.
    app.config["MAX_CONTENT_LENGTH"] = None
    app.config["BODY_TIMEOUT"] = None
    app.config["RESPONSE_TIMEOUT"] = None
    app.config["PROPAGATE_EXCEPTIONS"] = False
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False
    # Redirects would lose the API's shape, and ids may hold doubled slashes only to be refused.
    app.url_map.merge_slashes = False
    traffic = Traffic()
    health.register(app, daemon)
    facts.register(app, daemon)
    models.register(app, daemon)
    openai_models.register(app, daemon)
    inference.register(app, daemon)
    metrics.register(app, daemon, traffic)
    openapi.register(app)
    requests.register(app, daemon)
    page.register(app)
    _answer_errors(app)
    return Edge(app, daemon.settings, access, traffic)


def _answer_errors(app: Quart) -> None:
    @app.errorhandler(Exception)
    async def answer(error: Exception) -> Response:
        shown = _from_framework(error) if isinstance(error, HTTPException) else public(error)
        return _response(shown, error)


def _response(error: NeuronError, cause: Exception) -> Response:
    log_rejection(error, method=request.method, path=request.path)
    current().note_error(error)
    headers = dict(error_headers(error))
    allowed = getattr(cause, "valid_methods", None)
    if allowed:
        headers["allow"] = ", ".join(sorted(allowed))
    return Response(error_bytes(error), status=error.status, headers=headers)


def _from_framework(error: HTTPException) -> NeuronError:
    match error.code:
        case 404:
            return RouteNotFound("There is no such route.")
        case 405:
            return MethodNotAllowed("This route does not take this method.")
        case 413:
            return BodyTooLarge("The request body is too large.")
        case 415:
            return UnsupportedMediaType("Send 'Content-Type: application/json'.")
        case code if code is not None and 400 <= code < 500:
            return RequestError("The request cannot be understood.")
        case _:
            hidden = InternalError("Something went wrong in the daemon.")
            hidden.__cause__ = error
            return hidden
