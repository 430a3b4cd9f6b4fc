"""Responses bodies to InferenceRequest: input forms, items in both directions, and what is refused."""

from typing import Any

import pytest

from neuron.actors.errors import ChainedConversationNotSupported, RequestError
from neuron.actors.request import InferenceRequest, Message, Role, TextPart, ToolChoice
from neuron.api.validate.responses import ResponsesCall, read_responses


def call(value: Any = "hi", **fields: Any) -> ResponsesCall:
    return read_responses({"model": "org/name", "input": value, **fields}, req_id="r", principal="p")


def request(value: Any = "hi", **fields: Any) -> InferenceRequest:
    return call(value, **fields).request


def messages(value: Any, **fields: Any) -> tuple[Message, ...]:
    return request(value, **fields).messages


def refused(value: Any = "hi", **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        call(value, **fields)
    return caught.value


def test_text_input_and_instructions() -> None:
    assert messages("hi", instructions="be brief") == (
        Message(role=Role.SYSTEM, content="be brief"),
        Message(role=Role.USER, content="hi"),
    )


def test_items_without_type_equal_typed_ones() -> None:
    easy = [{"role": "system", "content": "s"}, {"role": "assistant", "content": "B"}, {"role": "user", "content": "C"}]
    typed = [{"type": "message", **item} for item in easy]
    assert messages(easy) == messages(typed) == messages([typed[0], *easy[1:]])
    assert [message.content for message in messages(easy)] == ["s", "B", "C"]


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ([{"role": "user", "content": "a"}, {"content": "x"}], "input[1]"),
        ([5], "input[0]"),
        ([], "input"),
        (None, "input"),
        (5, "input"),
        ([{"type": "mystery"}], "input[0].type"),
        ([{"role": "wizard", "content": "x"}], "input[0].role"),
        ([{"role": "user", "content": [{"type": "input_hologram"}]}], "input[0].content[0].type"),
        ([{"type": "function_call", "call_id": "c", "arguments": "{}"}], "input[0].name"),
        ([{"type": "function_call_output", "call_id": "c"}], "input[0].output"),
        ([{"type": "web_search_call", "id": "x"}], "input"),
    ],
)
def test_bad_input_is_named(value: Any, param: str) -> None:
    assert refused(value).param == param


def test_parts_and_null_content() -> None:
    value = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "b", "annotations": []}]},
        {"role": "user", "content": None},
    ]
    assert [message.content for message in messages(value)] == [(TextPart("a"),), (TextPart("b"),), ""]


def test_reasoning_message_and_calls_are_one_turn() -> None:
    value = [
        {"role": "user", "content": "go"},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "think"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "calling"}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'},
        {"type": "function_call", "id": "fc_2", "call_id": "c2", "name": "g", "arguments": ""},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
        {
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "more"}],
            "encrypted_content": None,
        },
        {"type": "function_call", "call_id": "c3", "name": "f", "arguments": "{}"},
    ]
    parsed = messages(value)
    assert [message.role for message in parsed] == ["user", "assistant", "tool", "tool", "assistant"]
    first, last = parsed[1], parsed[4]
    assert (first.reasoning, first.content) == ("think", (TextPart("calling"),))
    assert [(call.id, call.name, call.arguments) for call in first.tool_calls] == [
        ("c1", "f", {"a": 1}),
        ("c2", "g", {}),
    ]
    assert [(message.tool_call_id, message.content) for message in parsed[2:4]] == [
        ("c1", "one"),
        ("c2", (TextPart("two"),)),
    ]
    assert (last.reasoning, last.content, len(last.tool_calls)) == ("more", "", 1)


def test_answers_in_a_row_stay_apart() -> None:
    value = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert [message.content for message in messages(value)] == ["a", "b"]


def test_tools_in_responses_form() -> None:
    tools = [
        {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True},
        {"type": "web_search_preview"},
        {"type": "local_shell"},
    ]
    parsed = request(tools=tools, tool_choice={"type": "function", "name": "f"})
    assert [tool.name for tool in parsed.tools] == ["f"]
    assert parsed.tools[0].raw == {
        "type": "function",
        "function": {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True},
    }
    assert (parsed.tool_choice, parsed.tool_choice_name) == (ToolChoice.NAMED, "f")


def test_state_is_not_kept() -> None:
    assert isinstance(refused(previous_response_id="resp_1"), ChainedConversationNotSupported)
    assert refused([{"type": "item_reference", "id": "x"}]).code == "chained_conversation_not_supported"
    call(previous_response_id=None, store=False, include=["reasoning.encrypted_content"], prompt_cache_key="k")


@pytest.mark.parametrize(
    "fields",
    [
        {"background": True},
        {"truncation": "auto"},
        {"conversation": "c"},
        {"prompt": {"id": "p"}},
        {"top_logprobs": 2},
        {"include": ["reasoning.encrypted_content", "message.output_text.logprobs"]},
    ],
)
def test_unsupported(fields: dict[str, Any]) -> None:
    error = refused(**fields)
    assert (error.code, error.param) == ("unsupported_parameter", next(iter(fields)))


def test_format_effort_and_limit() -> None:
    schema = {"type": "object"}
    parsed = request(
        text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}, "verbosity": "low"},
        reasoning={"effort": "low", "summary": "auto"},
        max_output_tokens=3,
    )
    assert (parsed.response_format.kind, parsed.response_format.schema) == ("json_schema", schema)
    assert (parsed.reasoning_effort, parsed.max_tokens) == ("low", 3)
    assert refused(max_output_tokens=0).param == "max_output_tokens"
    assert refused(reasoning={"effort": "loud"}).param == "reasoning.effort"
