"""Random bodies: whatever is sent, validation gives a request or a typed 4xx with an encodable message."""

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neuron.actors.errors import RequestError
from neuron.actors.request import InferenceRequest
from neuron.api.errors import error_bytes
from neuron.api.validate.chat import read_chat
from neuron.api.validate.load import read_load, read_model_id
from neuron.api.validate.ranges import IGNORED, RESPONSES_UNSUPPORTED, SAMPLING, UNSUPPORTED
from neuron.api.validate.responses import read_responses

_scalar = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
_words = st.sampled_from(
    [
        "text",
        "input_text",
        "image_url",
        "function",
        "function_call",
        "function_call_output",
        "reasoning",
        "message",
        "user",
        "assistant",
        "tool",
        "system",
        "auto",
        "none",
        "required",
        "enabled",
        "json_schema",
        "data:image/png;base64,AA==",
    ]
)
_keys = st.sampled_from(
    [
        "type",
        "role",
        "content",
        "text",
        "image_url",
        "url",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "id",
        "call_id",
        "output",
        "summary",
        "parameters",
        "schema",
        "json_schema",
        "include_usage",
        "enable_thinking",
        "effort",
        "format",
    ]
)
_json = st.recursive(
    _scalar | _words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys | st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
_fields = [
    *SAMPLING,
    *UNSUPPORTED,
    *RESPONSES_UNSUPPORTED,
    *IGNORED,
    "messages",
    "input",
    "tools",
    "tool_choice",
    "stream",
    "stop",
    "stop_sequences",
    "logit_bias",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "n",
    "logprobs",
    "top_logprobs",
    "response_format",
    "text",
    "reasoning",
    "reasoning_effort",
    "thinking",
    "chat_template_kwargs",
    "stream_options",
    "parallel_tool_calls",
    "instructions",
    "previous_response_id",
    "model_id",
    "devices",
    "quant",
]
_body = st.dictionaries(st.sampled_from(_fields), _json, max_size=6)
_message = st.dictionaries(_keys, _json, max_size=5)
_quick = settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def attempt(read: Any, body: dict[str, Any], **context: Any) -> None:
    result, error = _outcome(read, body, context)
    if error is not None:
        assert 400 <= error.status < 500
        assert json.loads(error_bytes(error))["error"]["message"]
    elif hasattr(result, "request"):
        assert isinstance(result.request, InferenceRequest)
        assert result.request.messages


def _outcome(read: Any, body: dict[str, Any], context: dict[str, Any]) -> tuple[Any, RequestError | None]:
    try:
        return read(body, **context), None
    except RequestError as error:
        return None, error


@_quick
@given(_body, st.lists(_message, min_size=1, max_size=4) | st.just([{"role": "user", "content": "hi"}]))
def test_chat(fields: dict[str, Any], messages: list[Any]) -> None:
    attempt(read_chat, {"model": "org/name", "messages": messages, **fields}, req_id="r", principal="p")


@_quick
@given(_body, st.lists(_message, min_size=1, max_size=4) | st.text(max_size=5))
def test_responses(fields: dict[str, Any], value: Any) -> None:
    attempt(read_responses, {"model": "org/name", "input": value, **fields}, req_id="r", principal="p")


@_quick
@given(_body)
def test_load(fields: dict[str, Any]) -> None:
    attempt(read_load, fields)
    attempt(read_model_id, fields)
