"""Values typed by the tool's schema (TOOL-05): never an exception, always valid JSON."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron.actors.text.tool_calls_typing import allowed_kinds, dump_arguments, load_json, properties_of, typed_value

NULLABLE = {"anyOf": [{"type": "string"}, {"type": "null"}]}
ROOT = {
    "type": "object",
    "$defs": {
        "Count": {"type": "integer"},
        "Loop": {"$ref": "#/$defs/Loop"},
        "Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}},
        "a/b": {"type": "boolean"},
    },
}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "integer"}, "7", 7),
        ({"type": "integer"}, " 7 ", 7),
        ({"type": "integer"}, "7.0", 7),
        ({"type": "integer"}, "7.5", "7.5"),
        ({"type": "integer"}, "2026-01-15", "2026-01-15"),
        ({"type": "integer"}, "true", "true"),
        ({"type": "integer"}, "9" * 5000, "9" * 5000),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": "number"}, "1e999", "1e999"),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "false", False),
        ({"type": "boolean"}, "yes", "yes"),
        ({"type": "string"}, "007", "007"),
        ({"type": "string"}, "null", "null"),
        ({"type": "string"}, '"q"', '"q"'),
        ({"type": "string"}, "  x ", "  x "),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({"type": "object"}, "{'a': 1}", "{'a': 1}"),
        ({"type": "object"}, '{"a": [1e999]}', '{"a": [1e999]}'),
        ({"type": "array"}, "[-1e999]", "[-1e999]"),
        ({"type": "array"}, "[1, 2]", [1, 2]),
        ({"type": "array"}, '{"a": 1}', '{"a": 1}'),
        ({"type": "null"}, "None", None),
        (NULLABLE, "null", None),
        (NULLABLE, "x", "x"),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "integer"]}, "7", "7"),
        ({"type": ["integer", "string"]}, "7", 7),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, "[1]", [1]),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, "[1", "[1"),
        ({"enum": ["a", 1]}, "a", "a"),
        ({"enum": [1, 2]}, "2", 2),
        ({"const": True}, "true", True),
        ({"$ref": "#/$defs/Count"}, "5", 5),
        ({"$ref": "#/$defs/Node"}, '{"next": {}}', {"next": {}}),
        ({"$ref": "#/$defs/a~1b"}, "true", True),
        ({"$ref": "#/$defs/Loop"}, "5", 5),
        ({"$ref": "#/nowhere"}, "5", 5),
        ({"$ref": "http://x/y"}, "x", "x"),
        ({}, "5", 5),
        (None, "5", 5),
        (None, "True", True),
        (None, '"q"', '"q"'),
        (None, "plain", "plain"),
        (None, "1e999", "1e999"),
        (None, "[1e999]", "[1e999]"),
        ({"type": "widget"}, "x", "x"),
        ({"type": 7}, "x", "x"),
        ({"anyOf": "x", "enum": 3}, "x", "x"),
    ],
)
def test_table(schema: Any, text: str, value: Any) -> None:
    typed = typed_value(text, schema, ROOT)
    assert typed == value
    assert type(typed) is type(value)


@pytest.mark.parametrize(
    ("schema", "known", "others"),
    [
        ({"properties": {"a": {"type": "string"}}}, {"a": {"type": "string"}}, None),
        ({"$defs": {"A": {"properties": {"a": 1}}}, "$ref": "#/$defs/A"}, {"a": 1}, None),
        ({"allOf": [{"properties": {"a": 1}}, {"properties": {"a": 2, "b": 3}}]}, {"a": 1, "b": 3}, None),
        ({"anyOf": [{"properties": {"a": 1}}], "properties": {"c": 2}}, {"a": 1, "c": 2}, None),
        ({"additionalProperties": {"type": "string"}}, {}, {"type": "string"}),
        ({"additionalProperties": False, "properties": []}, {}, None),
        ({"$ref": "#"}, {}, None),
        ({"allOf": [{"$ref": "#"}] * 99}, {}, None),
        ("x", {}, None),
    ],
)
def test_what_a_schema_says_of_the_arguments(schema: Any, known: Any, others: Any) -> None:
    assert properties_of(schema) == (known, others)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)
schemas = st.recursive(
    st.sampled_from(["string", "integer", "number", "boolean", "null", "object", "array", "?"]).map(
        lambda kind: {"type": kind}
    )
    | json_values,
    lambda children: st.fixed_dictionaries(
        {}, optional={"anyOf": st.lists(children), "type": children, "$ref": st.text(), "enum": st.lists(json_values)}
    ),
    max_leaves=10,
)


@given(text=st.text() | json_values.map(json.dumps), schema=schemas)
def test_any_text_under_any_schema_stays_json(text: str, schema: Any) -> None:
    dumped = dump_arguments({"v": typed_value(text, schema, schema)})
    assert dumped is not None
    json.loads(dumped.encode(), parse_constant=refuse)


def refuse(constant: str) -> Any:
    raise AssertionError(constant)


@given(value=json_values)
def test_dump_refuses_what_json_cannot_say(value: Any) -> None:
    dumped = dump_arguments({"v": value})
    if dumped is not None:
        json.loads(dumped.encode(), parse_constant=refuse)


def test_depth_is_no_exception() -> None:
    assert load_json("[" * 100_000) is None
    assert typed_value("[" * 100_000, {"type": "array"}, {}) == "[" * 100_000


def test_recursive_schemas_end() -> None:
    wide = {"anyOf": [{"$ref": "#"}] * 50}
    assert allowed_kinds(wide, wide) == ()
