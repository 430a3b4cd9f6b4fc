"""The OpenAPI document, made from the structs of the answers and the ranges that requests are checked with."""

from functools import cache
from typing import Any

import msgspec

import neuron
from neuron.actors import limits
from neuron.actors.request import Role
from neuron.api import bodies
from neuron.api.validate.ranges import MAX_TOKENS, SAMPLING, TOP_LOGPROBS
from neuron.api.validate.sampling import EFFORTS

Json = dict[str, Any]
_REF = "#/components/schemas/{name}"
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
)


@cache
def document() -> Json:
    _, components = msgspec.json.schema_components(_STRUCTS, ref_template=_REF)
    return {
        "openapi": "3.1.0",
        "info": {"title": "neuron", "version": neuron.__version__},
        "paths": _paths(),
        "components": {
            "schemas": {**components, "ChatRequest": _chat_request(), "ResponsesRequest": _responses_request()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }


def _paths() -> Json:
    name = {"name": "name", "in": "path", "required": True, "schema": _text()}
    model_id = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    everything = {"name": "all", "in": "query", "schema": {"type": "boolean"}}
    stream = {"name": "stream", "in": "query", "schema": {"type": "boolean"}}
    model_list = {"type": "array", "items": _ref("ModelBody")}
    load = _object({"model_id": _text(), "harness": _text(), "quant": _text(), **_load_numbers()}, ["model_id"])
    unload = _object({"model_id": _text()}, ["model_id"])
    return {
        "/health": {"get": _get("How the daemon is", _ref("HealthBody"))},
        "/health/live": {"get": _get("The event loop runs", _ref("StatusBody"))},
        "/health/ready": {"get": _get("Every start-up model has loaded or failed", _ref("StatusBody"), errors=(503,))},
        "/discovery": {"get": _get("Facts of the host", _ref("DiscoveryBody"))},
        "/version": {"get": _get("Versions", _ref("VersionBody"))},
        "/models": {"get": _get("Resident models", model_list, [everything])},
        "/models/{id}/endpoint": {"get": _get("Where a model is served", _ref("EndpointBody"), [model_id])},
        "/models/{id}/capabilities": {"get": _get("What a model can do", _ref("CapabilitiesBody"), [model_id])},
        "/models/load": {"post": _post("Load a model", load, _ref("LoadBody"), [stream])},
        "/models/unload": {"post": _post("Unload a model", unload, _ref("StatusBody"))},
        "/v1/models": {"get": _get("Models, as OpenAI lists them", _ref("OpenAiModels"))},
        "/v1/models/{id}": {"get": _get("One model", _ref("OpenAiModel"), [model_id])},
        "/v1/chat/completions": {"post": _post("Chat", _ref("ChatRequest"), {"type": "object"}, streamed=True)},
        "/v1/responses": {"post": _post("Responses", _ref("ResponsesRequest"), {"type": "object"}, streamed=True)},
        "/metrics": {"get": _operation("Prometheus text", {"text/plain": {"schema": _text()}})},
        "/requests": {"get": _get("Requests that run, and the latest that ended", _ref("RequestsBody"))},
        "/": {"get": _operation("The status page", {"text/html": {"schema": _text()}})},
        "/page/{name}": {"get": _operation("A file of the status page", {"text/css": {"schema": _text()}}, [name])},
        "/openapi.json": {"get": _get("This document", {"type": "object"})},
    }


def _get(summary: str, schema: Json, parameters: list[Json] | None = None, errors: tuple[int, ...] = ()) -> Json:
    return _operation(summary, {"application/json": {"schema": schema}}, parameters, errors=errors)


def _post(
    summary: str, body: Json, schema: Json, parameters: list[Json] | None = None, *, streamed: bool = False
) -> Json:
    content: Json = {"application/json": {"schema": schema}}
    if streamed or parameters:
        content["text/event-stream"] = {"schema": _text()}
    operation = _operation(summary, content, parameters, errors=(400, 404, 409, 413, 415, 422, 429, 500, 503))
    operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return operation


def _operation(
    summary: str, content: Json, parameters: list[Json] | None = None, *, errors: tuple[int, ...] = ()
) -> Json:
    failure = {"description": "An error", "content": {"application/json": {"schema": _ref("ErrorBody")}}}
    responses: Json = {"200": {"description": summary, "content": content}, "default": failure}
    responses.update({str(status): failure for status in errors})
    operation: Json = {"summary": summary, "responses": responses}
    if parameters:
        operation["parameters"] = parameters
    return operation


def _shared_fields() -> Json:
    fields: Json = {name: bounds.schema() for name, bounds in SAMPLING.items()}
    stop = {"type": "string", "minLength": 1}
    fields |= {
        "model": {"type": "string", "minLength": 1, "maxLength": limits.MODEL_ID_CHARS.value},
        "stream": _nullable("boolean"),
        "stop": {"anyOf": [stop, {"type": "array", "items": stop, "maxItems": limits.STOP_STRINGS.value}, _null()]},
        "parallel_tool_calls": _nullable("boolean"),
        "chat_template_kwargs": _nullable("object"),
        "tool_choice": {},
        "tools": {"type": ["array", "null"], "maxItems": limits.TOOLS.value, "items": {"type": "object"}},
        "logit_bias": {
            "type": ["object", "null"],
            "maxProperties": limits.LOGIT_BIAS_ENTRIES.value,
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        },
    }
    return fields


def _chat_request() -> Json:
    message = _object({"role": {"type": "string", "enum": [role.value for role in Role]}, "content": {}}, ["role"])
    fields = _shared_fields() | {
        "messages": {"type": "array", "minItems": 1, "maxItems": limits.MESSAGES.value, "items": message},
        "max_tokens": MAX_TOKENS.schema(),
        "max_completion_tokens": MAX_TOKENS.schema(),
        "n": {"enum": [1, None]},
        "logprobs": _nullable("boolean"),
        "top_logprobs": TOP_LOGPROBS.schema(),
        "reasoning_effort": {"enum": [*EFFORTS, None]},
        "response_format": _nullable("object"),
        "stream_options": _nullable("object"),
        "thinking": _nullable("object"),
    }
    return _object(fields, ["model", "messages"])


def _responses_request() -> Json:
    items = {"type": "array", "minItems": 1, "maxItems": limits.MESSAGES.value, "items": {"type": "object"}}
    fields = _shared_fields() | {
        "input": {"anyOf": [{"type": "string"}, items]},
        "instructions": _nullable("string"),
        "max_output_tokens": MAX_TOKENS.schema(),
        "previous_response_id": _null(),
        "reasoning": _nullable("object"),
        "text": _nullable("object"),
    }
    return _object(fields, ["model", "input"])


def _load_numbers() -> Json:
    count: Json = {"type": ["integer", "null"], "minimum": 1}
    devices = {"type": ["array", "null"], "items": {"type": ["integer", "string"]}}
    return {"tensor_parallel": count, "max_context": count, "devices": devices}


def _object(properties: Json, required: list[str]) -> Json:
    return {"type": "object", "properties": properties, "required": required}


def _ref(name: str) -> Json:
    return {"$ref": _REF.format(name=name)}


def _nullable(kind: str) -> Json:
    return {"type": [kind, "null"]}


def _null() -> Json:
    return {"type": "null"}


def _text() -> Json:
    return {"type": "string"}
