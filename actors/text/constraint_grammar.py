"""What a request allows the model to write, as a grammar for llguidance. Used by `constraint` only.

JSON is written on one line, and an integer without bounds has at most 16 digits, so that no small model runs on.
"""

import json
from collections.abc import Iterable
from enum import Enum
from typing import Any

from neuron.actors.request import InferenceRequest, Tool, ToolChoice
from neuron.actors.text.constraint_schema import DATA, check_schema
from neuron.actors.text.tool_calls import CALL_CLOSE, CALL_OPEN
from neuron.actors.text.tool_calls_typing import allowed_kinds
from neuron.actors.text.types import Markers

#: Integers that every reader of JSON keeps exact.
MAX_INTEGER = 2**53 - 1
_LIMITS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_BOUNDS = _LIMITS | {"multipleOf", "enum", "const"}
#: The library makes no range that reaches further out.
WIDEST = 10**18 - 1
#: Calls one constrained answer may hold.
MAX_CALLS = 16
_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?", "coerce_one_of": True}


class CallForm(Enum):
    """How a model writes a call inside its tool-call tags."""

    JSON = "json"
    XML = "xml"


def call_form(template_texts: Iterable[str]) -> CallForm:
    """The form that a chat template teaches its model."""
    return CallForm.XML if any("<function=" in text for text in template_texts) else CallForm.JSON


def grammar_of(request: InferenceRequest, markers: Markers | None, form: CallForm, *, newlines: bool) -> str | None:
    """The grammar in llguidance's Lark dialect, None where anything may be written.

    `newlines`: up to two line breaks may come first (behind a think block). Raises InvalidValue for a schema that is
    too large or too deep.
    """
    builder = _Builder(markers)
    kind = request.response_format.kind
    calls = request.tools if request.tool_choice is not ToolChoice.NONE else ()
    if request.tool_choice is ToolChoice.NAMED:
        named = [tool for tool in calls if tool.name == request.tool_choice_name]
        start = builder.calls(named, form, most=1)
    elif request.tool_choice is ToolChoice.REQUIRED:
        start = builder.calls(calls, form, most=MAX_CALLS if request.parallel_tool_calls else 1)
    elif kind in ("json_object", "json_schema"):
        schema = request.response_format.schema if kind == "json_schema" else None
        start = builder.json({"type": "object"} if schema is None else schema, lenient=False)
        if calls:
            start += " | " + builder.calls(calls, form, most=MAX_CALLS if request.parallel_tool_calls else 1)
    else:
        return None
    return builder.grammar(start, newlines=newlines)


class _Builder:
    def __init__(self, markers: Markers | None) -> None:
        self._rules: list[str] = []
        #: Marker ids where the tokenizer has them: no other spelling of the tag is a call then.
        self._open = quoted(CALL_OPEN) if markers is None else f"<[{markers.open_id}]>"
        self._close = quoted(CALL_CLOSE) if markers is None else f"<[{markers.close_id}]>"

    def grammar(self, start: str, *, newlines: bool) -> str:
        head = [f"answer: {start}"]
        head.insert(0, "start: NEWLINES? answer\nNEWLINES: /\\n{1,2}/" if newlines else "start: answer")
        return "\n".join([*head, *self._rules]) + "\n"

    def rule(self, body: str, attributes: str = "") -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    def json(self, schema: dict[str, Any], *, lenient: bool) -> str:
        """A rule for JSON text of the schema. `lenient`: keywords the library lacks are ignored, not refused."""
        check_schema(schema, "tools" if lenient else "response_format")
        options = {**_OPTIONS, "lenient": lenient}
        return self.rule("%json " + json.dumps({**bounded(schema), "x-guidance": options}, ensure_ascii=True))

    def calls(self, tools: Iterable[Tool], form: CallForm, *, most: int) -> str:
        bodies = [self._json_call(tool) if form is CallForm.JSON else self._xml_call(tool) for tool in tools]
        call = self.rule(f'{self._open} "\\n" ({" | ".join(bodies)}) "\\n" {self._close}')
        return call if most == 1 else self.rule(f'{call} ("\\n" {call}){{0,{most - 1}}}')

    def _json_call(self, tool: Tool) -> str:
        head = '{"name": ' + json.dumps(tool.name, ensure_ascii=False) + ', "arguments": '
        return self.rule(f'{quoted(head)} {self.json(_object_schema(tool), lenient=True)} "}}"')

    def _xml_call(self, tool: Tool) -> str:
        schema = _object_schema(tool)
        properties = schema.get("properties")
        required = schema.get("required")
        parts = []
        for key, value in properties.items() if isinstance(properties, dict) else ():
            if any(char in "<>\n" for char in key) or not key:
                continue
            optional = not (isinstance(required, list) and key in required)
            parts.append(self._xml_parameter(key, value, schema) + ("?" if optional else ""))
        return self.rule(" ".join([quoted(f"<function={tool.name}>\n"), *parts, '"</function>"']))

    def _xml_parameter(self, key: str, schema: Any, root: dict[str, Any]) -> str:
        head = quoted(f"<parameter={key}>\n")
        end = '"\\n</parameter>\\n"'
        kinds = allowed_kinds(schema, root)
        choices = _string_choices(schema)
        if choices:
            return self.rule(f"{head} ({' | '.join(quoted(choice) for choice in choices)}) {end}")
        if not kinds or "string" in kinds or not isinstance(schema, dict):
            return self.rule(f"{head} {self.rule('/(?s:.*)/', f'[suffix={end}]')}")
        shared: dict[str, Any] = {
            name: root[name] for name in ("$defs", "definitions") if name in root and name not in schema
        }
        return self.rule(f"{head} {self.json({**shared, **schema}, lenient=True)} {end}")


def _object_schema(tool: Tool) -> dict[str, Any]:
    schema = tool.parameters
    return schema if "type" in schema or "$ref" in schema else {**schema, "type": "object"}


def _string_choices(schema: Any) -> list[str]:
    """The texts of an enum (or const) of strings; none where any of them could not stand in the form."""
    if not isinstance(schema, dict):
        return []
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if not isinstance(values, list) or not all(isinstance(value, str) and "</param" not in value for value in values):
        return []
    return values


def quoted(text: str) -> str:
    """A literal of the Lark dialect (JSON's escapes)."""
    return json.dumps(text, ensure_ascii=False)


def bounded(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with a range for every integer that has none, and with no bound that the library cannot express."""
    out: dict[str, Any] = {}
    for key, value in schema.items():
        if isinstance(value, dict) and key not in DATA:
            out[key] = bounded(value)
        elif isinstance(value, list) and key not in DATA:
            out[key] = [bounded(item) if isinstance(item, dict) else item for item in value]
        else:
            out[key] = value
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    if "integer" in kinds and "number" not in kinds and not _BOUNDS & schema.keys():
        out |= {"minimum": -MAX_INTEGER, "maximum": MAX_INTEGER}
    return out | {key: _reachable(key, out[key]) for key in _LIMITS & out.keys()}


def _reachable(key: str, value: Any) -> Any:
    """Such as the bounds of a 64-bit integer or a double, which programs write into schemas: moved inwards."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return max(value, -WIDEST) if key in ("minimum", "exclusiveMinimum") else min(value, WIDEST)
