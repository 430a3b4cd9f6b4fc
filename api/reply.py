"""Building answers in routes: JSON from structs, and the parts of a request that routes need."""

from typing import Any

import msgspec
from quart import Response, request

from neuron.api.context import RequestContext, context_of

_ENCODER = msgspec.json.Encoder()


def reply_json(body: Any, status: int = 200) -> Response:
    return Response(_ENCODER.encode(body), status=status, content_type="application/json")


def current() -> RequestContext:
    """The context of the request being handled."""
    return context_of(request.scope)
