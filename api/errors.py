"""NeuronError to OpenAI's error body and headers. Every error that goes out, in or out of a stream, is made here."""

import json
from typing import Any

from neuron.actors.errors import InvalidApiKey, RequestError
from neuron.runtime.errors import InternalError, NeuronError
from neuron.runtime.logs import get_logger

_log = get_logger("neuron.api")


def public(error: BaseException) -> NeuronError:
    """The error to show: itself when it has a public face, else an InternalError that says nothing of the cause."""
    if isinstance(error, NeuronError):
        return error
    hidden = InternalError("Something went wrong in the daemon. The log has the details under this request's id.")
    hidden.__cause__ = error
    return hidden


def error_body(error: NeuronError) -> dict[str, Any]:
    """Extras stand beside the four keys of OpenAI, and never replace them."""
    body: dict[str, Any] = {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": error.code,
    }
    for key, value in error.extra.items():
        body.setdefault(key, value)
    return {"error": body}


def error_bytes(error: NeuronError) -> bytes:
    return json.dumps(error_body(error), ensure_ascii=True).encode("ascii")


def error_headers(error: NeuronError) -> list[tuple[str, str]]:
    headers = [("content-type", "application/json")]
    if error.retry_after is not None:
        headers.append(("retry-after", str(max(1, int(error.retry_after)))))
    if error.should_retry is not None:
        headers.append(("x-should-retry", "true" if error.should_retry else "false"))
    if isinstance(error, InvalidApiKey):
        headers.append(("www-authenticate", 'Bearer realm="neuron"'))
    return headers


def log_rejection(error: NeuronError, *, method: str, path: str) -> None:
    """One line for each refused request; a defect of ours is logged with its traceback."""
    fields: dict[str, Any] = {
        "status": error.status,
        "error_code": error.code,
        "param": error.param,
        "method": method,
        "path": path[:200],
    }
    if isinstance(error, InternalError):
        _log.error("request failed", **fields, exc_info=error.__cause__ or error)
    elif error.status >= 500:
        _log.warning("request rejected", **fields, detail=error.message[:500])
    else:
        _log.info("request rejected", **fields, detail=error.message[:500])


class MalformedHttp(RequestError):
    """Bytes that are no HTTP/1.1 request, or one that two servers could read differently."""

    code = "malformed_http"
