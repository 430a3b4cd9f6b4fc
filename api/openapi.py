"""The OpenAPI document, made from the structs of the answers and the tables that requests are checked with."""

from functools import cache

import msgspec

import neuron
from neuron.actors.daemon import LoadProgress
from neuron.api import bodies
from neuron.api.openapi_answers import answer_schemas
from neuron.api.openapi_parts import FLAG, REF, TEXT, WHOLE, Json, items, ref
from neuron.api.openapi_requests import request_schemas
from neuron.api.page_files import TYPES

_STRUCTS = (
    bodies.HealthBody,
    bodies.StatusBody,
    bodies.VersionBody,
    bodies.DiscoveryBody,
    bodies.ModelBody,
    bodies.EndpointBody,
    bodies.CapabilitiesBody,
    bodies.LoadBody,
    bodies.OpenAiModels,
    bodies.OpenAiModel,
    bodies.RequestsBody,
    bodies.ErrorBody,
    LoadProgress,
)
#: What stands beside the four keys of an error, where it applies.
_EXTRAS: Json = {
    "kind": TEXT,
    "model_id": TEXT,
    "suggestion": TEXT,
    "prompt_len": WHOLE,
    "max": WHOLE,
    "requested": TEXT,
    "available": items(TEXT),
    "nearest": {"type": ["string", "null"]},
    "cause": TEXT,
}


@cache
def document() -> Json:
    _, components = msgspec.json.schema_components(_STRUCTS, ref_template=REF)
    components["PublicError"]["properties"] |= _EXTRAS
    return {
        "openapi": "3.1.0",
        "info": {"title": "neuron", "version": neuron.__version__},
        "paths": _paths(),
        "components": {
            "schemas": {**components, **request_schemas(), **answer_schemas()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }


def _paths() -> Json:
    model_id = {
        "name": "id",
        "in": "path",
        "required": True,
        "schema": TEXT,
        "description": "org/name or scheme:org/name; the slash may come as %2F.",
    }
    everything = {"name": "all", "in": "query", "schema": FLAG, "description": "Also models that are not resident."}
    stream = {"name": "stream", "in": "query", "schema": FLAG, "description": "Progress as events: LoadProgress."}
    think = {
        "name": "x-include-thinking",
        "in": "header",
        "schema": TEXT,
        "description": "true, 1 or yes: content carries the reasoning in the model's markers.",
    }
    chat = _post("Chat", "ChatRequest", ref("ChatCompletion"), [think], events="ChatCompletionChunk")
    responses = _post("Responses", "ResponsesRequest", ref("Response"), [think], events="ResponseEvent")
    unload = _post("Unload a model", "UnloadRequest", ref("StatusBody"))
    return {
        "/health": {"get": _get("How the daemon is", ref("HealthBody"))},
        "/health/live": {"get": _get("The event loop runs", ref("StatusBody"))},
        "/health/ready": {"get": _ready()},
        "/discovery": {"get": _get("Facts of the host", ref("DiscoveryBody"))},
        "/version": {"get": _get("Versions", ref("VersionBody"))},
        "/models": {"get": _get("Resident models", items(ref("ModelBody")), [everything])},
        "/models/{id}/endpoint": {"get": _get("Where a model is served", ref("EndpointBody"), [model_id])},
        "/models/{id}/capabilities": {"get": _get("What a model can do", ref("CapabilitiesBody"), [model_id])},
        "/models/load": {
            "post": _post("Load a model", "LoadRequest", ref("LoadBody"), [stream], events="LoadProgress")
        },
        "/models/unload": {"post": unload},
        "/v1/models": {"get": _get("Models, as OpenAI lists them", ref("OpenAiModels"))},
        "/v1/models/{id}": {"get": _get("One model", ref("OpenAiModel"), [model_id])},
        "/v1/chat/completions": {"post": chat},
        "/v1/responses": {"post": responses},
        "/metrics": {"get": _operation("Prometheus text", {"text/plain": {"schema": TEXT}})},
        "/openapi.json": {"get": _get("This document", {"type": "object"})},
        "/requests": {"get": _get("Requests that run, and the latest that ended", ref("RequestsBody"))},
        "/": {"get": _operation("The status page", {"text/html": {"schema": TEXT}})},
        "/page/{name}": {"get": _page_file()},
    }


def _page_file() -> Json:
    kinds = {kind.partition(";")[0] for kind in TYPES.values()}
    name = {"name": "name", "in": "path", "required": True, "schema": {"enum": [n for n in TYPES if n != "index.html"]}}
    content: Json = {kind: {"schema": TEXT} for kind in sorted(kinds)}
    return _operation("A file of the status page", content, [name], errors=(404,))


def _ready() -> Json:
    operation = _get("Every start-up model has loaded or failed", ref("StatusBody"))
    waiting = {"description": "Not yet, or draining", "content": {"application/json": {"schema": ref("StatusBody")}}}
    operation["responses"]["503"] = waiting
    return operation


def _get(summary: str, schema: Json, parameters: list[Json] | None = None) -> Json:
    errors = (404,) if any(parameter["in"] == "path" for parameter in parameters or []) else ()
    return _operation(summary, {"application/json": {"schema": schema}}, parameters, errors=errors)


def _post(
    summary: str, body: str, answer: Json, parameters: list[Json] | None = None, *, events: str | None = None
) -> Json:
    """`events`: the component that the data of each server-sent event is, where the answer can be streamed."""
    content: Json = {"application/json": {"schema": answer}}
    if events is not None:
        content["text/event-stream"] = {"x-event-data": ref(events)}
    operation = _operation(
        summary, content, parameters, errors=(400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 500, 503)
    )
    operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": ref(body)}}}
    return operation


def _operation(
    summary: str, content: Json, parameters: list[Json] | None = None, *, errors: tuple[int, ...] = ()
) -> Json:
    failure = {"description": "An error", "content": {"application/json": {"schema": ref("ErrorBody")}}}
    headers = {"x-request-id": {"schema": TEXT, "description": "The client's own where it sent a sane one."}}
    responses: Json = {"200": {"description": summary, "headers": headers, "content": content}, "default": failure}
    responses.update({str(status): failure for status in errors})
    operation: Json = {"summary": summary, "responses": responses}
    if parameters:
        operation["parameters"] = parameters
    return operation
