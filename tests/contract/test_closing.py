"""Constrained answers within max_tokens, over HTTP with a model that never ends by itself."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from tests.contract.asking import MARKS, ask, function
from tests.harness.daemon import DaemonProcess

STRING: dict[str, Any] = {"type": "string"}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"text": STRING, "tags": {"type": "array", "items": STRING}, "n": {"type": "integer"}},
    "required": ["text", "tags", "n"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
TOOLS = [function("note", ["text"], text=STRING)]


def endless(*first: str, opened: bool = False) -> dict[str, Any]:
    """Some pieces, then the letter a for ever."""
    emit: list[Any] = [*first, *["a"] * 4000]
    prompt = "{{ messages[0].content }}<|assistant|>" + ("<think>\n" if opened else "")
    return {"turns": [{"emit": emit}], "added_tokens": MARKS, "chat_template": prompt}


SCRIPTS = {
    "string": endless('{"text": "', "so "),
    "list": endless('{"text": "x", ', '"tags": ["', '", "', '", "', "b"),
    "blanks": {**endless(), "turns": [{"emit": ['{"text": "', *[" "] * 4000]}]},
    "thinks": endless("<think>"),
    "opened": endless(opened=True),
    "call": endless("<tool_call>", '\n{"name": "note", ', '"arguments": {"text": "'),
}


@pytest.fixture(name="daemon", scope="module")
def _daemon() -> Iterator[DaemonProcess]:
    with DaemonProcess(SCRIPTS) as daemon:
        yield daemon


@pytest.mark.parametrize("name", ["string", "list", "thinks", "opened"])
@pytest.mark.parametrize("limit", [100, 200])
def test_open_values_are_closed(daemon: DaemonProcess, name: str, limit: int) -> None:
    answer = ask(daemon, name, "x", response_format=FORMAT, max_tokens=limit)
    assert answer.finish == "stop"
    assert answer.usage["completion_tokens"] <= limit
    jsonschema.validate(json.loads(answer.content), SCHEMA)
    if name in ("thinks", "opened"):
        assert len(answer.reasoning) > limit // 4


def test_blanks_end_although_much_is_left(daemon: DaemonProcess) -> None:
    answer = ask(daemon, "blanks", "x", response_format=FORMAT, max_tokens=600)
    assert answer.finish == "stop"
    jsonschema.validate(json.loads(answer.content), SCHEMA)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "note"}}])
def test_forced_calls_are_closed(daemon: DaemonProcess, choice: Any) -> None:
    answer = ask(daemon, "call", "x", tools=TOOLS, tool_choice=choice, max_tokens=120)
    assert (answer.content, answer.finish) == ("", "tool_calls")
    assert answer.calls[0][0] == "note"
    assert isinstance(answer.calls[0][1]["text"], str)


def test_a_limit_below_the_shortest_answer_ends_at_the_limit(daemon: DaemonProcess) -> None:
    answer = ask(daemon, "string", "x", response_format=FORMAT, max_tokens=5)
    assert (answer.finish, answer.usage["completion_tokens"]) == ("length", 5)
