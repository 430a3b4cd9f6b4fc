"""Turns a request's messages and tools into what chat templates take: plain dicts in transformers' form.

System and developer messages become one leading system message (texts joined by a blank line, in order). Text-only
content becomes one string, parts joined by a line end. Tool-call arguments become mappings: "" and "null" an empty
one, a text that is no JSON object stays that text under the key "arguments". Nothing is None.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from neuron.actors.errors import InvalidValue
from neuron.actors.request import ImagePart, InferenceRequest, Message, Part, Role, TextPart, Thinking, ToolCall

Json = dict[str, Any]
PART_SEPARATOR = "\n"
SYSTEM_SEPARATOR = "\n\n"
#: Weakest first; a template that knows only some of them gets the nearest it knows.
_EFFORTS = ("minimal", "low", "medium", "high", "xhigh")


def template_messages(messages: Sequence[Message], *, as_parts: bool) -> list[Json]:
    """Messages for the template. `as_parts`: content is a list of parts (templates that iterate over it)."""
    system = [message for message in messages if message.role in (Role.SYSTEM, Role.DEVELOPER)]
    others = [message for message in messages if message.role not in (Role.SYSTEM, Role.DEVELOPER)]
    result: list[Json] = []
    if system:
        text = SYSTEM_SEPARATOR.join(filter(None, (_system_text(message) for message in system)))
        result.append({"role": "system", "content": _content(text, as_parts)})
    result.extend(_message(message, as_parts) for message in others)
    return result


def has_images(messages: Sequence[Message]) -> bool:
    return any(isinstance(part, ImagePart) for message in messages for part in _parts(message.content))


def template_tools(request: InferenceRequest) -> list[Json] | None:
    """The tools as sent, key order kept; None when there are none (an empty list would change the prompt)."""
    return [tool.raw for tool in request.tools] or None


def _parts(content: str | tuple[Part, ...]) -> tuple[Part, ...]:
    return (TextPart(content),) if isinstance(content, str) else content


def _system_text(message: Message) -> str:
    parts = _parts(message.content)
    for part in parts:
        if isinstance(part, ImagePart):
            raise InvalidValue("Images are not supported in system messages.", param=part.where)
    return PART_SEPARATOR.join(part.text for part in parts if isinstance(part, TextPart))


def _content(content: str | tuple[Part, ...], as_parts: bool) -> str | list[Json]:
    parts = _parts(content)
    if not any(isinstance(part, ImagePart) for part in parts):
        text = PART_SEPARATOR.join(part.text for part in parts if isinstance(part, TextPart))
        return [{"type": "text", "text": text}] if as_parts else text
    return [{"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": "image"} for part in parts]


def _message(message: Message, as_parts: bool) -> Json:
    result: Json = {"role": message.role.value, "content": _content(message.content, as_parts)}
    if message.name:
        result["name"] = message.name
    if message.reasoning:
        result["reasoning_content"] = message.reasoning
    if message.tool_calls:
        result["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    if message.tool_call_id:
        result["tool_call_id"] = message.tool_call_id
    return result


def _tool_call(call: ToolCall) -> Json:
    function = {"name": call.name, "arguments": call_arguments(call.arguments)}
    return {**({"id": call.id} if call.id else {}), "type": "function", "function": function}


def call_arguments(arguments: Json | str) -> Json:
    """A mapping in any case (see the module's text)."""
    if isinstance(arguments, dict):
        return arguments
    text = arguments.strip()
    if text in ("", "null"):
        return {}
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"arguments": arguments}


def thinking_variables(request: InferenceRequest, template_source: str) -> Json:
    """Template variables of the thinking knobs.

    Precedence, the last wins: reasoning_effort, thinking {type}, chat_template_kwargs. Effort "none" turns thinking
    off; another effort is passed on, as the nearest level that the template spells out.
    """
    variables: Json = {}
    effort = request.reasoning_effort
    if effort == "none":
        variables.update(_switch(False))
    elif effort is not None:
        variables["reasoning_effort"] = _known_effort(effort, template_source)
    if request.thinking is not Thinking.DEFAULT:
        variables.update(_switch(request.thinking is Thinking.ON))
    variables.update(request.template_kwargs)
    return variables


def _switch(on: bool) -> Json:
    """The names under which templates read the switch."""
    return {"enable_thinking": on, "thinking": on}


def _known_effort(effort: str, source: str) -> str:
    known = [level for level in _EFFORTS if f"'{level}'" in source or f'"{level}"' in source]
    if effort in known or not known or effort not in _EFFORTS or "reasoning_effort" not in source:
        return effort
    wanted = _EFFORTS.index(effort)
    return min(known, key=lambda level: (abs(_EFFORTS.index(level) - wanted), -_EFFORTS.index(level)))
