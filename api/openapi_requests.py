"""The request bodies of the OpenAPI document, from the tables that `api.validate` checks them with."""

from neuron.actors import limits
from neuron.actors.request import Role
from neuron.api.openapi_parts import (
    ANY_OBJECT,
    NULL,
    TEXT,
    Json,
    any_of,
    either,
    items,
    nullable,
    optional,
    record,
    ref,
)
from neuron.api.validate.load import CONTEXT, DEVICES, QUANT_CHARS, RANKS
from neuron.api.validate.ranges import BIAS, MAX_TOKENS, RESPONSES_UNSUPPORTED, SAMPLING, TOP_LOGPROBS, UNSUPPORTED
from neuron.api.validate.sampling import EFFORTS, RESERVED_TEMPLATE_NAMES
from neuron.api.validate.tools import NAME

_MODEL: Json = {"type": "string", "minLength": 1, "maxLength": limits.MODEL_ID_CHARS.value}
_NAME: Json = {"type": "string", "pattern": f"^{NAME.pattern}$", "maxLength": limits.TOOL_NAME_CHARS.value}
_IMAGE: Json = {"type": "string", "pattern": "^data:image/"}


def request_schemas() -> Json:
    """Named components."""
    return {
        "ChatRequest": _chat(),
        "ResponsesRequest": _responses(),
        "LoadRequest": _load(),
        "UnloadRequest": record({"model_id": _MODEL}),
        "ChatMessage": _message(),
        "ContentPart": _part(),
        "Tool": record({"type": either("function"), "function": ref("Function")}),
        "Function": record(
            {"name": _NAME}, description=nullable("string"), parameters=nullable("object"), strict=nullable("boolean")
        ),
        "ToolCall": record(
            {"function": record({"name": {**TEXT, "minLength": 1}}, arguments=any_of(TEXT, ANY_OBJECT, NULL))},
            id=nullable("string"),
            type=either("function"),
        ),
        "ResponseFormat": any_of(
            record({"type": either("text", "json_object")}),
            record({"type": either("json_schema"), "json_schema": record({"schema": ANY_OBJECT}, name=TEXT)}),
        ),
        "InputItem": _input_item(),
    }


def _shared() -> Json:
    stop: Json = {"type": "string", "minLength": 1}
    return {name: bounds.schema() for name, bounds in SAMPLING.items()} | {
        "model": _MODEL,
        "stream": nullable("boolean"),
        "stop": any_of(stop, items(stop, maxItems=limits.STOP_STRINGS.value), NULL),
        "stop_sequences": optional(items(stop, maxItems=limits.STOP_STRINGS.value)),
        "parallel_tool_calls": nullable("boolean"),
        "enable_thinking": nullable("boolean"),
        "thinking": optional(record({"type": either("enabled", "disabled", "adaptive", "auto")})),
        "chat_template_kwargs": {
            "type": ["object", "null"],
            "propertyNames": {"pattern": "^[A-Za-z][A-Za-z0-9_]*$", "not": {"enum": sorted(RESERVED_TEMPLATE_NAMES)}},
            "properties": {"enable_thinking": nullable("boolean")},
            "description": "Variables for the model's chat template.",
        },
        "logit_bias": {
            "type": ["object", "null"],
            "maxProperties": limits.LOGIT_BIAS_ENTRIES.value,
            "propertyNames": {"pattern": "^[0-9]{1,10}$"},
            "additionalProperties": {"type": "number", "minimum": BIAS.low, "maximum": BIAS.high},
        },
    }


def _refused(table: dict[str, tuple[object, ...]]) -> Json:
    """Keys that change the meaning of an answer and are not supported: only these values ask for nothing."""
    return {key: either(*values, None) for key, values in table.items()}


def _chat() -> Json:
    fields = (
        _shared()
        | _refused(UNSUPPORTED)
        | {
            "messages": items(ref("ChatMessage"), minItems=1, maxItems=limits.MESSAGES.value),
            "max_tokens": MAX_TOKENS.schema(),
            "max_completion_tokens": MAX_TOKENS.schema(),
            "n": either(1, None),
            "logprobs": nullable("boolean"),
            "top_logprobs": {**TOP_LOGPROBS.schema(), "description": "Needs logprobs to be true."},
            "reasoning_effort": either(*EFFORTS, None),
            "response_format": optional(ref("ResponseFormat")),
            "stream_options": optional(record({}, include_usage=nullable("boolean"))),
            "tools": optional(items(ref("Tool"), maxItems=limits.TOOLS.value)),
            "tool_choice": _choice(record({"type": either("function"), "function": record({"name": _NAME})})),
        }
    )
    return _with_required(fields, "model", "messages")


def _responses() -> Json:
    flat = record(
        {"type": either("function"), "name": _NAME},
        description=nullable("string"),
        parameters=nullable("object"),
        strict=nullable("boolean"),
    )
    hosted = record({"type": {"type": "string", "pattern": "^(web_search|file_search|code_interpreter|mcp)"}})
    form = any_of(
        record({"type": either("text", "json_object")}),
        record({"type": either("json_schema"), "schema": ANY_OBJECT}, name=TEXT, strict=nullable("boolean")),
    )
    fields = (
        _shared()
        | _refused(UNSUPPORTED)
        | _refused(RESPONSES_UNSUPPORTED)
        | {
            "input": any_of(TEXT, items(ref("InputItem"), minItems=1, maxItems=limits.MESSAGES.value)),
            "instructions": nullable("string"),
            "max_output_tokens": MAX_TOKENS.schema(),
            "previous_response_id": NULL,
            "reasoning": optional(record({}, effort=either(*EFFORTS, None))),
            "text": optional(record({}, format=optional(form))),
            "metadata": nullable("object"),
            "tools": optional(items(any_of(flat, hosted), maxItems=limits.TOOLS.value)),
            "tool_choice": _choice(record({"type": either("function"), "name": _NAME})),
        }
    )
    return _with_required(fields, "model", "input")


def _choice(named: Json) -> Json:
    return any_of(either("auto", "none", "required", None), named)


def _message() -> Json:
    content = any_of(TEXT, items(ref("ContentPart"), maxItems=limits.CONTENT_PARTS.value), NULL)
    return record(
        {"role": either(*(role.value for role in Role))},
        content=content,
        name={"type": ["string", "null"], "maxLength": limits.TOOL_NAME_CHARS.value},
        tool_calls=optional(items(ref("ToolCall"), maxItems=limits.TOOL_CALLS.value)),
        tool_call_id=nullable("string"),
        reasoning_content=nullable("string"),
        reasoning=nullable("string"),
        function_call=NULL,
    )


def _part() -> Json:
    url = any_of(record({"url": _IMAGE}), _IMAGE)
    return any_of(
        record({"type": either("text", "input_text", "output_text"), "text": TEXT}),
        {
            **record({"type": either("image_url", "input_image"), "image_url": url}),
            "description": "A base64 data URI; user and tool turns of a model with the vision capability only.",
        },
        {**record({"type": either("refusal"), "refusal": TEXT}), "description": "Assistant turns only."},
    )


def _input_item() -> Json:
    content = any_of(TEXT, items(ref("ContentPart"), maxItems=limits.CONTENT_PARTS.value), NULL)
    texts = optional(items(record({"text": TEXT}, type=TEXT)))
    return any_of(
        record({"role": either("system", "developer", "user", "assistant")}, content=content, type=either("message")),
        record(
            {"type": either("function_call"), "name": {**TEXT, "minLength": 1}},
            call_id=nullable("string"),
            arguments=any_of(TEXT, ANY_OBJECT, NULL),
        ),
        record(
            {"type": either("function_call_output"), "output": any_of(TEXT, items(ref("ContentPart")))},
            call_id=nullable("string"),
        ),
        record({"type": either("reasoning")}, content=texts, summary=texts),
    )


def _load() -> Json:
    return record(
        {"model_id": _MODEL},
        harness=nullable("string"),
        quant={"type": ["string", "null"], "maxLength": QUANT_CHARS},
        tensor_parallel=RANKS.schema(),
        max_context=CONTEXT.schema(),
        devices=optional(items({"type": ["integer", "string"]}, maxItems=DEVICES)),
    )


def _with_required(fields: Json, *required: str) -> Json:
    return {"type": "object", "properties": fields, "required": list(required), "description": _UNKNOWN}


_UNKNOWN = "null means absent. Keys that are not listed are accepted and have no effect."
