"""The body of POST /v1/responses to InferenceRequest."""

from typing import Any

import msgspec

from neuron.actors import limits
from neuron.actors.errors import ChainedConversationNotSupported, UnsupportedParameter
from neuron.actors.request import InferenceRequest, Message, Role
from neuron.api.validate import ranges
from neuron.api.validate.chat import check_images, read_model
from neuron.api.validate.input_items import read_input
from neuron.api.validate.reader import Reader
from neuron.api.validate.sampling import (
    read_effort,
    read_response_format,
    read_sampling,
    read_stop,
    read_template_kwargs,
    read_thinking,
    refuse_unsupported,
)
from neuron.api.validate.tools import read_choice, read_flat_tools

_LOGPROBS = "message.output_text.logprobs"


class ResponsesCall(msgspec.Struct, frozen=True):
    """A validated request, how to write its answer, and what the answer repeats of the request."""

    request: InferenceRequest
    stream: bool
    instructions: str | None
    text: dict[str, Any]
    metadata: dict[str, str]


def read_responses(body: dict[str, Any], *, req_id: str, principal: str) -> ResponsesCall:
    """Raises RequestError subclasses naming `param`."""
    reader = Reader(body)
    model = read_model(reader)
    if reader.get("previous_response_id") is not None:
        raise ChainedConversationNotSupported(
            "'previous_response_id' is not supported: this server keeps no conversations. Send the whole input.",
            param="previous_response_id",
        )
    refuse_unsupported(reader, ranges.RESPONSES_UNSUPPORTED)
    refuse_unsupported(reader, ranges.UNSUPPORTED)
    _refuse_logprobs(reader)
    stream = reader.boolean("stream") or False
    instructions = reader.string("instructions")
    tools = read_flat_tools(reader)
    choice = read_choice(reader, tools)
    kwargs = read_template_kwargs(reader)
    reasoning = Reader(reader.object("reasoning") or {}, "reasoning")
    effort = read_effort(reasoning, "effort")
    form = Reader(reader.object("text") or {}, "text").object("format")
    parallel = reader.boolean("parallel_tool_calls")
    request = InferenceRequest(
        req_id=req_id,
        model=model,
        messages=_messages(reader, instructions),
        principal=principal,
        tools=tools,
        tool_choice=choice.kind,
        tool_choice_name=choice.name,
        parallel_tool_calls=True if parallel is None else parallel,
        response_format=read_response_format(form, "text.format"),
        sampling=read_sampling(reader),
        max_tokens=reader.integer("max_output_tokens", ranges.MAX_TOKENS),
        stop=read_stop(reader),
        thinking=read_thinking(reader, effort, kwargs),
        reasoning_effort=effort,
        template_kwargs=kwargs,
    )
    return ResponsesCall(
        request=request,
        stream=stream,
        instructions=instructions,
        text={"format": form or {"type": "text"}},
        metadata=_metadata(reader),
    )


def _refuse_logprobs(reader: Reader) -> None:
    """What else `include` may name is never there to be left out."""
    if _LOGPROBS in (reader.list("include", max_items=limits.CONTENT_PARTS.value) or ()):
        raise UnsupportedParameter(f"'include': {_LOGPROBS} is not supported by this server.", param="include")


def _messages(reader: Reader, instructions: str | None) -> tuple[Message, ...]:
    messages = read_input(reader)
    if instructions:
        messages.insert(0, Message(role=Role.SYSTEM, content=instructions))
    check_images(messages)
    return tuple(messages)


def _metadata(reader: Reader) -> dict[str, str]:
    """Only repeated in the answer; what is no text is left out."""
    return {key: value for key, value in (reader.object("metadata") or {}).items() if isinstance(value, str)}
