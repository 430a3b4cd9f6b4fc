"""Tools, tool choice and the tool calls of earlier turns, from either front door."""

import json
import re
from typing import Any

import msgspec

from neuron.actors import limits
from neuron.actors.errors import InvalidJson, InvalidValue, UnsupportedParameter
from neuron.actors.request import Tool, ToolCall, ToolChoice
from neuron.api.json_body import count_values, decode_json
from neuron.api.validate.reader import Reader, as_object, json_bytes

NAME = re.compile(r"[A-Za-z0-9_.:/-]+")
_CHOICES = {
    "auto": ToolChoice.AUTO,
    "none": ToolChoice.NONE,
    "required": ToolChoice.REQUIRED,
    "any": ToolChoice.REQUIRED,
}
#: Tools of the Responses API that OpenAI runs on its own side. Agents send them along; the model never sees them.
HOSTED = (
    "web_search",
    "file_search",
    "code_interpreter",
    "image_generation",
    "computer",
    "mcp",
    "local_shell",
    "shell",
    "apply_patch",
    "tool_search",
)


class Choice(msgspec.Struct, frozen=True):
    kind: ToolChoice = ToolChoice.AUTO
    name: str | None = None


def read_tools(reader: Reader) -> tuple[Tool, ...]:
    """Chat form: {type: function, function: {name, description, parameters}}."""
    tools = []
    for index, item in enumerate(reader.list("tools", max_items=limits.TOOLS.value) or []):
        entry = Reader(as_object(item, f"tools[{index}]"), f"tools[{index}]")
        kind = entry.string("type") or "function"
        if kind != "function":
            raise UnsupportedParameter(f"'{entry.at('type')}': only function tools are supported.", param="tools")
        function = entry.object("function")
        if function is None:
            raise InvalidValue(f"'{entry.at('function')}' is missing.", param=entry.at("function"))
        tools.append(_tool(Reader(function, entry.at("function")), function))
    return _distinct(tools)


def read_flat_tools(reader: Reader) -> tuple[Tool, ...]:
    """Responses form: {type: function, name, description, parameters, strict}; hosted tools are left out."""
    tools = []
    for index, item in enumerate(reader.list("tools", max_items=limits.TOOLS.value) or []):
        entry = Reader(as_object(item, f"tools[{index}]"), f"tools[{index}]")
        kind = entry.string("type") or "function"
        if kind.startswith(HOSTED):
            continue
        if kind != "function":
            raise UnsupportedParameter(f"'{entry.at('type')}': only function tools are supported.", param="tools")
        nested = entry.object("function")
        function = nested if nested is not None else {k: v for k, v in item.items() if k != "type"}
        tools.append(_tool(Reader(function, entry.prefix), function))
    return _distinct(tools)


def _tool(reader: Reader, function: dict[str, Any]) -> Tool:
    name = tool_name(reader)
    parameters = reader.object("parameters")
    if json_bytes(function) > limits.SCHEMA_BYTES.value:
        raise InvalidValue(
            f"'{reader.prefix}' must be at most {limits.SCHEMA_BYTES.value} bytes of JSON.", param=reader.prefix
        )
    shown = {key: value for key, value in function.items() if key != "cache_control"}
    return Tool(
        name=name,
        description=reader.string("description") or "",
        parameters=parameters if parameters is not None else {"type": "object", "properties": {}},
        raw={"type": "function", "function": shown},
    )


def tool_name(reader: Reader) -> str:
    name = reader.string("name", max_chars=limits.TOOL_NAME_CHARS.value)
    if name is None or not NAME.fullmatch(name):
        raise InvalidValue(
            f"'{reader.at('name')}' must be a name of letters, digits and _ . : / -.", param=reader.at("name")
        )
    return name


def _distinct(tools: list[Tool]) -> tuple[Tool, ...]:
    names: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in names:
            raise InvalidValue(f"Two tools are named '{tool.name}'.", param=f"tools[{index}]")
        names.add(tool.name)
    return tuple(tools)


def read_choice(reader: Reader, tools: tuple[Tool, ...]) -> Choice:
    """Strings, and both object forms: {type: function, function: {name}} and {type: function, name}."""
    choice = _choice(reader)
    if choice.kind in (ToolChoice.REQUIRED, ToolChoice.NAMED) and not tools:
        raise InvalidValue("'tool_choice' asks for a call, but 'tools' is empty or missing.", param="tools")
    if choice.kind is ToolChoice.NAMED and all(tool.name != choice.name for tool in tools):
        raise InvalidValue(f"'tool_choice' names '{choice.name}', which is not among 'tools'.", param="tool_choice")
    return choice


def _choice(reader: Reader) -> Choice:
    value = reader.get("tool_choice")
    if value is None:
        return Choice()
    kind = value.get("type") if isinstance(value, dict) else value
    if kind in ("function", "tool") and isinstance(value, dict):
        inner = Reader(value, "tool_choice")
        nested = inner.object("function")
        return Choice(ToolChoice.NAMED, tool_name(inner if nested is None else Reader(nested, "tool_choice.function")))
    if isinstance(kind, str) and kind in _CHOICES:
        return Choice(_CHOICES[kind])
    if isinstance(value, dict) and isinstance(kind, str):
        raise UnsupportedParameter(f"'tool_choice' of type '{kind[:64]}' is not supported.", param="tool_choice")
    raise InvalidValue(
        "'tool_choice' must be auto, none, required, or an object that names a function.", param="tool_choice"
    )


class CallReader:
    """Reads the calls of one request, whose arguments together hold no more values than a body may."""

    def __init__(self) -> None:
        self._left = limits.JSON_VALUES.value

    def tool_calls(self, reader: Reader) -> tuple[ToolCall, ...]:
        """The `tool_calls` of an assistant turn; ids may be null."""
        calls = []
        for index, item in enumerate(reader.list("tool_calls", max_items=limits.TOOL_CALLS.value) or []):
            place = f"{reader.at('tool_calls')}[{index}]"
            entry = Reader(as_object(item, place), place)
            function = entry.object("function")
            if function is None:
                raise InvalidValue(f"'{entry.at('function')}' is missing.", param=entry.at("function"))
            calls.append(self.call(Reader(function, entry.at("function")), entry.string("id")))
        return tuple(calls)

    def call(self, reader: Reader, call_id: str | None) -> ToolCall:
        name = reader.string("name", max_chars=limits.TOOL_NAME_CHARS.value)
        if not name:
            raise InvalidValue(f"'{reader.at('name')}' is missing.", param=reader.at("name"))
        return ToolCall(id=call_id, name=name, arguments=self._arguments(reader))

    def _arguments(self, reader: Reader) -> dict[str, Any] | str:
        """A mapping wherever the client's value is one or its text parses to one; else the text as it came."""
        value = reader.get("arguments")
        if value is None or value == "":
            return {}
        if isinstance(value, dict):
            return value
        if not isinstance(value, str):
            return json.dumps(value, ensure_ascii=False)
        body = value.encode("utf-8")
        self._left -= count_values(body, self._left)
        if self._left < 0:
            most, param = limits.JSON_VALUES.value, reader.at("arguments")
            raise InvalidValue(f"'{param}': the arguments of all calls hold more than {most} values.", param=param)
        try:
            parsed = decode_json(body)
        except InvalidJson:
            return value
        return parsed if isinstance(parsed, dict) else value
