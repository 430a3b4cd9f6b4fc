"""Constrained decoding: what the masks let through is what the request asked for, whatever a model would prefer."""

import json
from typing import Any

import jsonschema
import numpy as np
import pytest

from neuron.actors.errors import InvalidValue, UnsupportedParameter
from neuron.actors.request import ResponseFormat, Thinking, Tool, ToolChoice
from neuron.actors.text.constraint import Constraint, build_constraint
from neuron.actors.text.constraint_grammar import CallForm, bounded, call_form
from neuron.actors.text.parser import build_parser
from tests.actors.parser.harness import fold, request
from tests.actors.parser.schemas import SCHEMAS
from tests.actors.parser.walks import TextSide, accepts, allowed, ids, text_side, walk

SIDE = text_side()
PLAIN = text_side(thinks=False)
EOS = min(SIDE.tokenizer.eos_ids)
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "label": {"type": "string"}},
    "required": ["x"],
    "additionalProperties": False,
}
TOOLS = (
    Tool("move", "", POINT, {}),
    Tool("now", "", {"type": "object", "properties": {}, "additionalProperties": False}, {}),
    Tool(
        "pick",
        "",
        {
            "type": "object",
            "properties": {
                "kind": {"enum": ["a", "b c"]},
                "flags": {"type": "array", "items": {"type": "boolean"}},
                "at": {"$ref": "#/$defs/Point"},
            },
            "required": ["kind", "at"],
            "additionalProperties": False,
            "$defs": {"Point": POINT},
        },
        {},
    ),
)


def constraint(
    side: TextSide = SIDE, *, opens: bool = False, form: CallForm = CallForm.JSON, **fields: Any
) -> Constraint:
    built = build_constraint(side, request(**fields), opens_reasoning=opens, form=form)
    assert built is not None
    return built


ENDLESS: list[dict[str, Any]] = [
    {"$ref": "#"},
    {"allOf": [{"$ref": "#"}]},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    {"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]},
    {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}},
    {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
]
LINKED = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"]}
CHAIN = {
    "$ref": "#/$defs/d0",
    "$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(60)} | {"d60": {"type": "integer"}},
}


@pytest.mark.parametrize("schema", ENDLESS)
def test_a_schema_without_an_end_is_refused_before_an_answer_begins(schema: dict[str, Any]) -> None:
    """The library finds out in the middle of an answer, when the status is sent."""
    for param, fields in (
        ("response_format", {"response_format": schema_format(schema)}),
        ("tools", {"tools": (Tool("w", "", schema, {}),), "tool_choice": ToolChoice.REQUIRED}),
    ):
        with pytest.raises(InvalidValue, match="without an end") as caught:
            constraint(**fields)
        assert caught.value.param == param


@pytest.mark.parametrize("schema", [LINKED, CHAIN, {"type": "array", "items": {"$ref": "#"}}])
def test_references_that_end_are_followed(schema: dict[str, Any]) -> None:
    assert constraint(response_format=schema_format(schema)) is not None


def schema_format(schema: dict[str, Any]) -> ResponseFormat:
    return ResponseFormat("json_schema", schema)


@pytest.mark.parametrize("name", SCHEMAS)
def test_walks_validate(name: str) -> None:
    schema = SCHEMAS[name]
    for seed in range(3):
        tokens = walk(PLAIN, constraint(PLAIN, response_format=schema_format(schema)), seed)
        text = b"".join(PLAIN.tokenizer.token_bytes(token) for token in tokens).decode()
        jsonschema.validate(json.loads(text), schema)


def test_json_object() -> None:
    for seed in range(5):
        tokens = walk(PLAIN, constraint(PLAIN, response_format=ResponseFormat("json_object")), seed)
        assert isinstance(json.loads(bytes(tokens)), dict)


def test_nothing_to_constrain() -> None:
    for fields in ({}, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": ToolChoice.NONE}):
        assert build_constraint(SIDE, request(**fields), opens_reasoning=False) is None


def test_ends_only_when_complete() -> None:
    held = constraint(PLAIN, response_format=schema_format(POINT))
    for token in ids(PLAIN, '{"x": 1'):
        assert EOS not in allowed(PLAIN, held)
        assert not held.complete
        held.commit(token)
    held.commit(ids(PLAIN, "}")[0])
    assert allowed(PLAIN, held).tolist() == [min(PLAIN.tokenizer.eos_ids)]
    assert held.complete


def test_one_line_without_endless_blanks() -> None:
    held = constraint(PLAIN, response_format=schema_format(POINT))
    assert accepts(PLAIN, held, ids(PLAIN, "{" + "\n" * 50)) == 1
    for text in ('{"x":1}', '{"x": 1}', '{"x": 1, "label": "a"}', '{"x":1,"label":"a"}'):
        held = constraint(PLAIN, response_format=schema_format(POINT))
        assert accepts(PLAIN, held, ids(PLAIN, text)) == len(text)


def test_integers_without_bounds_end() -> None:
    held = constraint(PLAIN, response_format=schema_format({"type": ["integer", "null"]}))
    assert accepts(PLAIN, held, ids(PLAIN, "1" * 50)) == 16
    data = {"type": "object", "const": {"type": "integer"}, "properties": {"type": {"type": "integer", "minimum": 3}}}
    assert bounded(data) == data


def test_control_tokens_are_no_text() -> None:
    held = constraint(response_format=schema_format({"type": "string"}))
    held.commit(ids(SIDE, '"')[0])
    names = {SIDE.tokenizer.token_id(text) for text in ("<think>", "</think>", "<tool_call>", "</tool_call>")}
    assert not names & set(allowed(SIDE, held).tolist())


# -- thinking


def test_begins_after_the_think_block() -> None:
    held = constraint(opens=True, response_format=schema_format(POINT))
    assert not held.active
    assert accepts(SIDE, held, ids(SIDE, "free text {[\n")) == 13
    assert EOS not in allowed(SIDE, held)
    assert ids(SIDE, "<tool_call>")[0] not in allowed(SIDE, held)
    held.commit(ids(SIDE, "</think>")[0])
    assert held.active
    text = '\n\n{"x": 1}'
    assert accepts(SIDE, held, ids(SIDE, text)) == len(text)
    assert held.complete


def test_the_model_may_open_thinking_first() -> None:
    held = constraint(response_format=schema_format(POINT))
    tokens = ids(SIDE, '<think>hm</think>{"x": 1}')
    assert accepts(SIDE, held, tokens) == len(tokens)
    held = constraint(response_format=schema_format(POINT))
    assert accepts(SIDE, held, ids(SIDE, '{"x": <think>')) == 6
    held = constraint(response_format=schema_format(POINT), thinking=Thinking.OFF)
    assert accepts(SIDE, held, ids(SIDE, "<think>")) == 0


# -- calls


@pytest.mark.parametrize("form", CallForm)
@pytest.mark.parametrize("choice", [ToolChoice.REQUIRED, ToolChoice.NAMED])
@pytest.mark.parametrize("thinks", [True, False])
def test_forced_calls_parse_and_validate(form: CallForm, choice: ToolChoice, thinks: bool) -> None:
    side = SIDE if thinks else PLAIN
    schemas = {tool.name: tool.parameters for tool in TOOLS}
    for seed, name in enumerate(["move", "now", "pick", "pick"]):
        asked = request(tools=TOOLS, tool_choice=choice, tool_choice_name=name, thinking=Thinking.OFF)
        held = build_constraint(side, asked, opens_reasoning=False, form=form)
        assert held is not None
        machine = build_parser(side, opens_reasoning=False, request=asked)
        decode = side.tokenizer.detokenizer()
        deltas = [d for t in walk(side, held, seed) for d in machine.feed(t, decode.push(t))]
        out = fold(deltas + machine.finish(truncated=False))
        assert out.content.strip() == ""
        assert out.calls
        if choice is ToolChoice.NAMED:
            assert [called for called, _ in out.calls] == [name]
        for called, arguments in out.calls:
            jsonschema.validate(json.loads(arguments), schemas[called])


def test_one_call_without_parallel_calls() -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    tokens = ids(SIDE, call + "\n" + call)
    held = constraint(tools=TOOLS, tool_choice=ToolChoice.REQUIRED)
    assert accepts(SIDE, held, tokens) == len(tokens)
    held = constraint(tools=TOOLS, tool_choice=ToolChoice.REQUIRED, parallel_tool_calls=False)
    assert accepts(SIDE, held, tokens) == len(ids(SIDE, call))


def test_free_choice_with_a_schema_leaves_both() -> None:
    for text in ('{"x": 1}', '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'):
        held = constraint(tools=TOOLS, response_format=schema_format(POINT))
        tokens = ids(SIDE, text)
        assert accepts(SIDE, held, tokens) == len(tokens)
    held = constraint(tools=TOOLS, response_format=schema_format(POINT), tool_choice=ToolChoice.NONE)
    assert accepts(SIDE, held, ids(SIDE, "<tool_call>")) == 0


def test_tool_schemas_are_taken_leniently() -> None:
    odd = Tool("odd", "", {"properties": {"a": {"type": "array", "uniqueItems": True}}, "not": {}}, {})
    for form in CallForm:
        assert constraint(tools=(odd,), tool_choice=ToolChoice.REQUIRED, form=form)


def test_pieces_of_a_script_pass_where_the_grammar_forces_its_bytes() -> None:
    piece = '\n{"name": "now", "arguments": {}}\n'
    side = text_side(piece)
    held = constraint(side, tools=TOOLS, tool_choice=ToolChoice.REQUIRED)
    whole = side.tokenizer.vocab_size - 1
    assert side.tokenizer.token_bytes(whole) == piece.encode()
    tokens = [*ids(side, "<tool_call>"), whole, *ids(side, "</tool_call>")]
    assert accepts(side, held, tokens) == 3
    assert held.accepting


def test_form_of_a_template() -> None:
    assert call_form(["... <function=example> ..."]) is CallForm.XML
    assert call_form(['{"name": <function-name>}']) is CallForm.JSON


# -- refusals


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "widget"},
        {"not": {"type": "string"}},
        {"$ref": "http://127.0.0.1/x"},
        {"$ref": "#/nowhere"},
        {"type": "string", "pattern": "(a"},
        {"type": "array", "uniqueItems": True},
        {"if": {}, "then": {}},
        {"enum": []},
        {"$ref": "#"},
        {"type": "integer", "minimum": 5, "maximum": 3},
        {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(3000)}},
        nested(70),
        nested(20_000),
        {"type": "string", "description": "x" * 300_000},
    ],
)
def test_refused_schemas(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue) as caught:
        constraint(response_format=schema_format(schema))
    assert caught.value.status == 400
    assert caught.value.param == "response_format"
    assert "\n" not in caught.value.message


def test_schema_text_cannot_change_the_grammar() -> None:
    hostile = {"type": "object", "properties": {'a"\nstart: "x': {"const": '"\nr0: /.*/'}}, "description": "%json {}"}
    assert accepts(PLAIN, constraint(PLAIN, response_format=schema_format(hostile)), ids(PLAIN, "x")) == 0


def test_a_model_without_an_end_is_refused() -> None:
    side = text_side()
    side.tokenizer.eos_ids = frozenset()
    with pytest.raises(UnsupportedParameter):
        constraint(side, response_format=ResponseFormat("json_object"))


def test_a_forbidden_token_is_an_error_not_a_crash() -> None:
    held = constraint(PLAIN, response_format=schema_format(POINT))
    with pytest.raises(InvalidValue):
        held.commit(ids(PLAIN, "x")[0])
    with pytest.raises(InvalidValue):
        held.apply(np.zeros(PLAIN.tokenizer.vocab_size, np.float32))


def test_rows_shorter_and_longer_than_the_vocabulary() -> None:
    held = constraint(PLAIN, response_format=schema_format(POINT))
    size = PLAIN.tokenizer.vocab_size
    for length in (size - 2, size, size + 64):
        row = np.zeros(length, np.float32)
        held.apply(row)
        assert np.flatnonzero(np.isfinite(row)).tolist() == [ord("{")]
