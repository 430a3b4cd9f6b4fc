"""Constrained answers within a number of tokens: whatever the model prefers, the value is closed before the limit."""

import json
from typing import Any

import jsonschema
import numpy as np
import pytest

from neuron.actors.request import ResponseFormat, Thinking, Tool, ToolChoice
from neuron.actors.text.constraint import Constraint, build_constraint
from neuron.actors.text.constraint_budget import MAX_BLANKS, MAX_DIGITS, MAX_REPEATS, required_names
from neuron.actors.text.constraint_closing import MAX_LOCAL_STATES, MAX_STEPS, Closer, Lexer
from neuron.actors.text.constraint_grammar import CallForm, grammar_of
from neuron.actors.text.constraint_vocabulary import vocabulary
from neuron.actors.text.parser import build_parser
from tests.actors.parser.harness import fold, request
from tests.actors.parser.schemas import OPEN, SCHEMAS, STRING, record
from tests.actors.parser.walks import TextSide, allowed, ids, text_side

SIDE = text_side()
PLAIN = text_side(thinks=False)
EOS = min(SIDE.tokenizer.eos_ids)
#: What this model would rather not write.
CLOSING = list(b'"}],')
CALL_TOOLS = (
    Tool("note", "", record(["text"], text=STRING, tags={"type": "array", "items": STRING}), {}),
    Tool("set", "", record(n={"type": "integer"}, on={"type": "boolean"}), {}),
)


def constrained(side: TextSide, total: int | None, form: CallForm = CallForm.JSON, **fields: Any) -> Constraint:
    opens = fields.pop("opens", False)
    built = build_constraint(side, request(**fields), opens_reasoning=opens, form=form, max_new_tokens=total)
    assert built is not None
    return built


def write(
    side: TextSide, held: Constraint, total: int, seed: int = 0, *, likes: dict[int, float] | None = None
) -> list[int]:
    """What a model without any wish to end writes: the end token is the last id, or the limit cut the answer."""
    chance = np.random.default_rng(seed)
    out: list[int] = []
    for _ in range(total):
        row = chance.normal(0, 2, side.tokenizer.vocab_size).astype(np.float32)
        row[CLOSING] -= 9
        row[EOS] -= 9
        for token, bonus in (likes or {}).items():
            row[token] += bonus
        held.apply(row)
        token = int(row.argmax())
        held.commit(token)
        out.append(token)
        if token in side.tokenizer.eos_ids:
            break
    return out


def text_of(side: TextSide, tokens: list[int]) -> str:
    assert tokens[-1] == min(side.tokenizer.eos_ids), "the limit cut the answer"
    return b"".join(side.tokenizer.token_bytes(token) for token in tokens[:-1]).decode()


@pytest.mark.parametrize("name", [*SCHEMAS, *OPEN])
def test_every_schema_is_closed_in_time(name: str) -> None:
    schema = {**SCHEMAS, **OPEN}[name]
    total = max(120, len(shortest(schema)) + 10)
    held = constrained(PLAIN, total, response_format=ResponseFormat("json_schema", schema))
    jsonschema.validate(json.loads(text_of(PLAIN, write(PLAIN, held, total))), schema)


def shortest(schema: dict[str, Any]) -> list[int]:
    """The shortest answer that the search finds from the start."""
    asked = request(response_format=ResponseFormat("json_schema", schema))
    held = build_constraint(PLAIN, asked, opens_reasoning=False)
    assert held is not None
    closer = Closer(vocabulary(PLAIN.tokenizer), names=required_names(schema))
    plan = closer.plan(held._matcher, Lexer(), 4096)
    assert plan is not None
    jsonschema.validate(json.loads(text_of(PLAIN, plan)), schema)
    return plan


def test_the_shortest_answer_fits_exactly() -> None:
    """A limit of just the shortest answer gives it; one token less cannot be met and ends at the limit."""
    schema = record(a=STRING, b={"type": "array", "items": STRING}, c={"anyOf": [record(d=STRING), {"type": "null"}]})
    needed = len(shortest(schema))
    for total, done in ((needed, True), (needed + 1, True), (needed - 1, False)):
        held = constrained(PLAIN, total, response_format=ResponseFormat("json_schema", schema))
        assert (write(PLAIN, held, total)[-1] == EOS) is done


def test_escapes_do_not_fill_a_minimal_length() -> None:
    text = text_of(PLAIN, shortest(OPEN["long minimum"]))
    assert json.loads(text)["text"] == "." * 40


def test_a_limit_beyond_any_need_narrows_nothing() -> None:
    schema = record(a=STRING)
    free = constrained(PLAIN, None, response_format=ResponseFormat("json_schema", schema))
    far = constrained(PLAIN, 10_000, response_format=ResponseFormat("json_schema", schema))
    for token in ids(PLAIN, '{"a": "some text'):
        assert allowed(PLAIN, free).tolist() == allowed(PLAIN, far).tolist()
        free.commit(token)
        far.commit(token)


@pytest.mark.parametrize("form", CallForm)
@pytest.mark.parametrize("choice", [ToolChoice.REQUIRED, ToolChoice.NAMED])
def test_forced_calls_are_closed_in_time(form: CallForm, choice: ToolChoice) -> None:
    for seed in range(3):
        asked = request(tools=CALL_TOOLS, tool_choice=choice, tool_choice_name="note", thinking=Thinking.OFF)
        held = build_constraint(SIDE, asked, opens_reasoning=False, form=form, max_new_tokens=150)
        assert held is not None
        tokens = write(SIDE, held, 150, seed)
        assert tokens[-1] == EOS
        machine = build_parser(SIDE, opens_reasoning=False, request=asked)
        decode = SIDE.tokenizer.detokenizer()
        deltas = [delta for token in tokens[:-1] for delta in machine.feed(token, decode.push(token))]
        out = fold(deltas + machine.finish(truncated=False))
        assert out.calls
        for name, arguments in out.calls:
            schema = next(tool.parameters for tool in CALL_TOOLS if tool.name == name)
            jsonschema.validate(json.loads(arguments), schema)


def test_thinking_leaves_room_for_the_answer() -> None:
    schema = record(a=STRING)
    thinks = {ids(SIDE, "<think>")[0]: 30.0, ids(SIDE, "</think>")[0]: -30.0}
    for opens in (True, False):
        held = constrained(SIDE, 100, response_format=ResponseFormat("json_schema", schema), opens=opens)
        tokens = write(SIDE, held, 100, likes=thinks)
        close = tokens.index(ids(SIDE, "</think>")[0])
        assert close > 20, "it thinks as long as it can"
        jsonschema.validate(json.loads(text_of(SIDE, tokens[close + 1 :])), schema)


@pytest.mark.parametrize(
    ("schema", "liked", "most"),
    [
        (record(a=STRING), " ", MAX_BLANKS + 60),
        (record(a={"type": "number"}), "7", MAX_DIGITS + 60),
        (record(a=STRING), "x", MAX_REPEATS + 60),
    ],
)
def test_blanks_digits_and_repeats_end_without_a_limit(schema: dict[str, Any], liked: str, most: int) -> None:
    held = constrained(PLAIN, None, response_format=ResponseFormat("json_schema", schema))
    liking = {ids(PLAIN, liked)[0]: 50.0, **{token: 20.0 for token in ids(PLAIN, '{}":a')}}
    tokens = write(PLAIN, held, most, likes=liking)
    jsonschema.validate(json.loads(text_of(PLAIN, tokens)), schema)


def test_sampling_keeps_a_choice_near_the_end() -> None:
    """With some room left the model's best tokens stay allowed, not the closing one alone."""
    held = constrained(PLAIN, 30, response_format=ResponseFormat("json_schema", record(a=STRING)))
    for token in ids(PLAIN, '{"a": "so'):
        held.commit(token)
    assert len(allowed(PLAIN, held)) > 4


def test_names_of_required_keys() -> None:
    schema = record(["a"], a=record(b=STRING), c={"anyOf": [record(d=STRING), STRING]})
    assert set(required_names(schema)) == {b"a", b"b", b"d"}


def test_the_lexer_knows_strings() -> None:
    lexer = Lexer()
    for text, inside in (('{"a', True), ('\\"', True), ('": 1, "', True), ('"}', False), ("\n", False)):
        lexer.feed(text.encode())
        assert lexer.in_string is inside
    lexer.feed(b'"open\n')
    assert not lexer.in_string
    lexer.feed(b"12")
    assert lexer.in_number


def test_a_grammar_of_calls_and_schema_is_closed() -> None:
    """`tool_choice` auto beside a schema: either may be written, both end."""
    asked = request(tools=CALL_TOOLS, response_format=ResponseFormat("json_schema", record(a=STRING)))
    assert grammar_of(asked, SIDE.tool_call, CallForm.JSON, newlines=False)
    for liked in ("{", "<tool_call>"):
        held = build_constraint(SIDE, asked, opens_reasoning=False, max_new_tokens=120)
        assert held is not None
        tokens = write(SIDE, held, 120, likes={ids(SIDE, liked)[0]: 40.0})
        assert tokens[0] == ids(SIDE, liked)[0]
        assert tokens[-1] == EOS


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 100_000},
        {"type": "string", "pattern": "^(a|b){5000}$"},
        {"type": "array", "items": {"type": "integer"}, "minItems": 20_000},
    ],
)
def test_a_value_too_long_to_close_costs_a_bounded_search(
    schema: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop waits for a search: what is not found soon is not looked for at every token."""
    steps = 0
    step = Closer._step

    def counted(self: Closer, matcher: Any, byte: int) -> Any:
        nonlocal steps
        steps += 1
        return step(self, matcher, byte)

    monkeypatch.setattr(Closer, "_step", counted)
    held = constrained(PLAIN, 60, response_format=ResponseFormat("json_schema", schema))
    out = write(PLAIN, held, 60)
    assert len(out) == 60
    #: Attempts at the first token, and 16 and 32 tokens later.
    assert steps <= 3 * (MAX_STEPS + MAX_LOCAL_STATES)
