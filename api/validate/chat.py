"""The body of POST /v1/chat/completions to InferenceRequest."""

from typing import Any

import msgspec

from neuron.actors import limits
from neuron.actors.errors import InvalidImage, InvalidValue, UnsupportedParameter
from neuron.actors.request import ImagePart, InferenceRequest, Message, Role
from neuron.api.validate import ranges
from neuron.api.validate.content import read_content
from neuron.api.validate.reader import Number, Reader, as_object
from neuron.api.validate.sampling import (
    read_effort,
    read_response_format,
    read_sampling,
    read_stop,
    read_template_kwargs,
    read_thinking,
    refuse_unsupported,
)
from neuron.api.validate.tools import CallReader, read_choice, read_tools

_WITH_IMAGES = frozenset({Role.USER, Role.TOOL})
_ROLES = tuple(role.value for role in Role)


class ChatCall(msgspec.Struct, frozen=True):
    """A validated request and how its answer is to be written."""

    request: InferenceRequest
    stream: bool
    include_usage: bool


def read_chat(body: dict[str, Any], *, req_id: str, principal: str) -> ChatCall:
    """Raises RequestError subclasses naming `param`."""
    reader = Reader(body)
    model = read_model(reader)
    refuse_unsupported(reader, ranges.UNSUPPORTED)
    _single_choice(reader)
    stream = reader.boolean("stream") or False
    messages = read_messages(reader)
    tools = read_tools(reader)
    choice = read_choice(reader, tools)
    kwargs = read_template_kwargs(reader)
    effort = read_effort(reader)
    logprobs, top_logprobs = _logprobs(reader)
    parallel = reader.boolean("parallel_tool_calls")
    request = InferenceRequest(
        req_id=req_id,
        model=model,
        messages=messages,
        principal=principal,
        tools=tools,
        tool_choice=choice.kind,
        tool_choice_name=choice.name,
        parallel_tool_calls=True if parallel is None else parallel,
        response_format=read_response_format(reader.object("response_format"), "response_format"),
        sampling=read_sampling(reader),
        max_tokens=_max_tokens(reader),
        stop=read_stop(reader),
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        thinking=read_thinking(reader, effort, kwargs),
        reasoning_effort=effort,
        template_kwargs=kwargs,
    )
    return ChatCall(request=request, stream=stream, include_usage=_include_usage(reader))


def read_model(reader: Reader, key: str = "model") -> str:
    model = reader.string(key, max_chars=limits.MODEL_ID_CHARS.value)
    if not model:
        raise InvalidValue(f"'{key}' is missing.", param=key)
    if not model.isprintable():
        raise InvalidValue(f"'{key}' must not hold control characters.", param=key)
    return model


def has_images(request: InferenceRequest) -> bool:
    return any(
        isinstance(part, ImagePart)
        for message in request.messages
        if not isinstance(message.content, str)
        for part in message.content
    )


def check_images(messages: list[Message]) -> None:
    """Raises InvalidImage beyond the number of images of one request."""
    count = sum(
        isinstance(part, ImagePart)
        for message in messages
        if not isinstance(message.content, str)
        for part in message.content
    )
    if count > limits.IMAGES.value:
        raise InvalidImage(f"A request may hold at most {limits.IMAGES.value} images.", param="messages")


def read_messages(reader: Reader) -> tuple[Message, ...]:
    items = reader.list("messages", max_items=limits.MESSAGES.value)
    if not items:
        raise InvalidValue("'messages' must be a list that is not empty.", param="messages")
    calls = CallReader()
    messages = [
        _message(Reader(as_object(item, f"messages[{index}]"), f"messages[{index}]"), calls)
        for index, item in enumerate(items)
    ]
    check_images(messages)
    return tuple(messages)


def _message(reader: Reader, calls: CallReader) -> Message:
    name = reader.choice("role", _ROLES)
    if name is None:
        raise InvalidValue(f"'{reader.at('role')}' is missing.", param=reader.at("role"))
    role = Role(name)
    assistant = role is Role.ASSISTANT
    content = read_content(
        reader.get("content"), reader.at("content"), images=role in _WITH_IMAGES, assistant=assistant
    )
    reasoning = None
    if assistant:
        reasoning = reader.string("reasoning_content") or reader.string("reasoning") or content.reasoning
        if reader.get("function_call") is not None:
            raise UnsupportedParameter(
                f"'{reader.at('function_call')}' is not supported; use tool_calls.", param=reader.at("function_call")
            )
    return Message(
        role=role,
        content=content.body,
        reasoning=reasoning,
        tool_calls=calls.tool_calls(reader) if assistant else (),
        tool_call_id=reader.string("tool_call_id") if role is Role.TOOL else None,
        name=reader.string("name", max_chars=limits.TOOL_NAME_CHARS.value),
    )


def _single_choice(reader: Reader) -> None:
    count = reader.integer("n", Number(1, ranges.INT64, integer=True))
    if count is not None and count != 1:
        raise UnsupportedParameter("'n' must be 1; send one request for each answer.", param="n")


def _max_tokens(reader: Reader) -> int | None:
    """Both names are checked; the newer one wins."""
    newer = reader.integer("max_completion_tokens", ranges.MAX_TOKENS)
    older = reader.integer("max_tokens", ranges.MAX_TOKENS)
    return older if newer is None else newer


def _logprobs(reader: Reader) -> tuple[bool, int]:
    wanted = reader.boolean("logprobs") or False
    top = reader.integer("top_logprobs", ranges.TOP_LOGPROBS) or 0
    if top and not wanted:
        raise InvalidValue("'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs")
    return wanted, top


def _include_usage(reader: Reader) -> bool:
    options = reader.object("stream_options")
    return bool(Reader(options, "stream_options").boolean("include_usage")) if options is not None else False
