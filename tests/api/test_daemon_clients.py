"""The official client against the real daemon: chat and Responses, streamed and not, tools, errors as its classes."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.harness.daemon import DaemonProcess, say

ADDED = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
CALLS = [f'{{"name": "add", "arguments": {{"a": {n}}}}}' for n in (1, 2)]
SCRIPTS: dict[str, Any] = {
    "echo": {"turns": [{"when": f"number {n}.", "emit": [f"answer {n}", " done"]} for n in range(20)]},
    "tools": {
        **say("Adding. ", "<tool_call>", CALLS[0], "</tool_call>", "<tool_call>", CALLS[1], "</tool_call>"),
        "added_tokens": ADDED,
    },
    "thinks": {**say("<think>", "plan", "</think>", "ok"), "added_tokens": ADDED},
    "cut": {**say("<think>", "a", "b", "c", repeat=True), "added_tokens": ADDED},
    "broken": say("a", "b", "c", fault={"at": 2, "phase": "decode", "kind": "host", "text": "boom", "times": 100}),
}
TOOL: Any = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
FLAT: Any = {
    "type": "function",
    "name": "add",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
}


@pytest.fixture(name="daemon", scope="module")
def _daemon() -> Iterator[DaemonProcess]:
    with DaemonProcess(SCRIPTS) as daemon:
        yield daemon


@pytest.fixture(name="client", scope="module")
def _client(daemon: DaemonProcess) -> Iterator[openai.OpenAI]:
    with daemon.openai() as client:
        yield client


@pytest.mark.parametrize("include_usage", [True, False])
def test_streamed_and_buffered_agree_on_twenty_prompts(client: openai.OpenAI, include_usage: bool) -> None:
    for number in range(20):
        messages: Any = [{"role": "user", "content": f"number {number}."}]
        buffered = client.chat.completions.create(model="test/echo", messages=messages, temperature=0)
        options: Any = {"stream_options": {"include_usage": True}} if include_usage else {}
        stream = client.chat.completions.create(
            model="test/echo", messages=messages, temperature=0, stream=True, **options
        )
        chunks = list(stream)
        text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        assert text == buffered.choices[0].message.content == f"answer {number} done"
        usage = chunks[-1].usage
        assert usage is not None
        assert buffered.usage is not None
        assert usage.total_tokens == buffered.usage.total_tokens


def test_tools_streamed_and_not(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "add"}]
    buffered = client.chat.completions.create(model="test/tools", messages=messages, tools=[TOOL])
    calls = buffered.choices[0].message.tool_calls or []
    assert [json.loads(call.function.arguments) for call in calls if call.type == "function"] == [{"a": 1}, {"a": 2}]
    assert buffered.choices[0].finish_reason == "tool_calls"
    with client.chat.completions.stream(model="test/tools", messages=messages, tools=[TOOL]) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    streamed = final.choices[0].message.tool_calls or []
    assert [call.function.arguments for call in streamed] == [
        call.function.arguments for call in calls if call.type == "function"
    ]
    assert len({call.id for call in [*calls, *streamed]}) == 4


def test_responses_events_have_their_types(client: openai.OpenAI) -> None:
    with client.responses.stream(model="test/tools", input="add", tools=[FLAT]) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    assert [item.type for item in final.output] == ["message", "function_call", "function_call"]
    calls = [item for item in final.output if item.type == "function_call"]
    assert [json.loads(call.arguments) for call in calls] == [{"a": 1}, {"a": 2}]
    assert all(call.id != call.call_id for call in calls)
    buffered = client.responses.create(model="test/tools", input="add", tools=[FLAT])
    assert [item.type for item in buffered.output] == [item.type for item in final.output]


def test_responses_cut_in_thought_are_incomplete(client: openai.OpenAI) -> None:
    buffered = client.responses.create(model="test/cut", input="hi", max_output_tokens=3)
    assert buffered.status == "incomplete"
    assert buffered.incomplete_details is not None
    assert buffered.incomplete_details.reason == "max_output_tokens"
    events = list(client.responses.create(model="test/cut", input="hi", max_output_tokens=3, stream=True))
    assert events[-1].type == "response.incomplete"
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_reasoning_has_its_own_field(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="test/thinks", messages=[{"role": "user", "content": "hi"}])
    message = answer.choices[0].message
    assert message.content == "ok"
    assert message.model_dump()["reasoning_content"] == message.model_dump()["reasoning"] == "plan"


def test_errors_are_its_classes(client: openai.OpenAI) -> None:
    hello: Any = [{"role": "user", "content": "hi"}]
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="none/such", messages=hello)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="test/echo", messages=hello, temperature=5)
    assert (bad.value.param, bad.value.code) == ("temperature", "invalid_value")
    with pytest.raises(openai.BadRequestError) as chained:
        client.responses.create(model="test/echo", input="hi", previous_response_id="resp_1")
    assert chained.value.code == "chained_conversation_not_supported"
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="test/broken", messages=hello)


def test_an_error_inside_a_stream_raises(client: openai.OpenAI) -> None:
    hello: Any = [{"role": "user", "content": "hi"}]
    stream = client.chat.completions.create(model="test/broken", messages=hello, stream=True)
    seen: list[str] = []
    with pytest.raises(openai.APIError):
        _read_texts(stream, seen)
    assert seen == ["a", "b"]


def test_the_history_of_a_call_goes_back(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(
        model="test/tools", messages=[{"role": "user", "content": "add"}], tools=[TOOL]
    )
    turn: Any = first.choices[0].message.model_dump(exclude_none=True)
    call = turn["tool_calls"][0]
    messages: Any = [
        {"role": "user", "content": "add"},
        turn,
        {"role": "tool", "tool_call_id": call["id"], "content": "3"},
    ]
    assert client.chat.completions.create(model="test/tools", messages=messages, tools=[TOOL]).choices
    output = client.responses.create(model="test/tools", input="add", tools=[FLAT]).output
    history: Any = [{"role": "user", "content": "add"}, *[item.model_dump(exclude_none=True) for item in output]]
    history.append({"type": "function_call_output", "call_id": getattr(output[1], "call_id", ""), "output": "3"})
    assert client.responses.create(model="test/tools", input=history, tools=[FLAT]).status == "completed"


def _read_texts(stream: Any, seen: list[str]) -> None:
    for chunk in stream:
        seen += [choice.delta.content for choice in chunk.choices if choice.delta.content]
