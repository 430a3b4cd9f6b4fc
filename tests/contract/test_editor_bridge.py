"""The reference's editor bridge, straight at /v1: x-include-thinking, verbatim blocks, Responses by output_index."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.daemon import DaemonProcess

ADDED = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
CALL = '{"name": "read", "arguments": {"path": "a.txt"}}'
SCRIPTS: dict[str, Any] = {
    "thinks": {"turns": [{"emit": ["<think>", "pl", "an", "</think>", "ok"]}], "added_tokens": ADDED},
    "calls": {"turns": [{"emit": ["<tool_call>", "\n", CALL, "\n", "</tool_call>"]}], "added_tokens": ADDED},
    "broken": {
        "turns": [{"emit": ["<tool_call>", '{"name": "read", "arguments": {', "</tool_call>"]}],
        "added_tokens": ADDED,
    },
}
TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}
INCLUDE = {"x-include-thinking": "true"}


@pytest.fixture(name="daemon", scope="module")
def _daemon() -> Iterator[DaemonProcess]:
    with DaemonProcess(SCRIPTS) as daemon:
        yield daemon


def stream(daemon: DaemonProcess, name: str, headers: dict[str, str], **fields: Any) -> list[dict[str, Any]]:
    payload = daemon.chat_body(name, stream=True, stream_options={"include_usage": True}, **fields)
    with daemon.client() as client:
        text = client.post("/v1/chat/completions", json=payload, headers=headers).text
    return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]


def deltas(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [choice["delta"] for chunk in chunks for choice in chunk["choices"]]


def test_models_are_listed_by_id(daemon: DaemonProcess) -> None:
    listed = daemon.get("/v1/models")
    assert listed["object"] == "list"
    assert {entry["id"] for entry in listed["data"]} == {f"test/{name}" for name in SCRIPTS}
    for entry in listed["data"]:
        assert entry["object"] == "model"
        assert entry["context_length"] == entry["max_model_len"] == 4096


def test_thinking_is_shown_once(daemon: DaemonProcess) -> None:
    shown = deltas(stream(daemon, "thinks", INCLUDE))
    assert "".join(delta.get("content", "") for delta in shown) == "<think>plan</think>ok"
    assert not any("reasoning_content" in delta or "reasoning" in delta for delta in shown)
    apart = deltas(stream(daemon, "thinks", {}))
    assert "".join(delta.get("content", "") for delta in apart) == "ok"
    assert "".join(delta.get("reasoning_content", "") for delta in apart) == "plan"


def test_nothing_is_null_that_would_break_a_chunk(daemon: DaemonProcess) -> None:
    for name in SCRIPTS:
        for chunk in stream(daemon, name, INCLUDE, tools=[TOOL]):
            assert isinstance(chunk["choices"], list)
            for choice in chunk["choices"]:
                assert isinstance(choice["delta"], dict)
                assert None not in choice["delta"].values()


@pytest.mark.parametrize("streamed", [True, False])
def test_what_does_not_parse_comes_back_verbatim(daemon: DaemonProcess, streamed: bool) -> None:
    if streamed:
        found = "".join(delta.get("content", "") for delta in deltas(stream(daemon, "broken", {}, tools=[TOOL])))
    else:
        found = daemon.chat("broken", tools=[TOOL]).json()["choices"][0]["message"]["content"]
    assert found == '<tool_call>{"name": "read", "arguments": {</tool_call>'


def test_responses_by_output_index(daemon: DaemonProcess) -> None:
    tool = {"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}}
    payload = {"model": daemon.model_id("calls"), "input": "go", "stream": True, "tools": [tool]}
    with daemon.client() as client:
        text = client.post("/v1/responses", json=payload).text
    events = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    added = [event for event in events if event["type"] == "response.output_item.added"]
    assert [(event["output_index"], event["item"]["arguments"]) for event in added] == [(0, "")]
    fragments = [event for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert {event["output_index"] for event in fragments} == {0}
    assert json.loads("".join(event["delta"] for event in fragments)) == {"path": "a.txt"}
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["usage"]["output_tokens"] > 0
