"""Responses events and bodies (RESP-02 to RESP-07), checked with the official client's own models."""

import json
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from neuron.actors.events import FinishReason, InferenceEvent, TextDelta
from neuron.api.wire.responses import ResponsesShape, ResponsesStream, new_response_id
from neuron.runtime.errors import InternalError, WorkerDied
from tests.api.wire.samples import (
    ANSWERS,
    CUT_TEXT,
    CUT_THINKING,
    EMPTY,
    FAILED,
    FULL,
    HOSTILE,
    LOGPROBS,
    TEXT,
    THOUGHT,
    call,
    client,
    finish,
    fold_responses,
    frames,
)

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TOOLS = ({"type": "function", "name": "glob", "description": "", "parameters": {"type": "object"}, "strict": False},)


def shape(**fields: Any) -> ResponsesShape:
    return ResponsesShape(id="resp_1", created=1_700_000_000, model="org/m", tools=TOOLS, **fields)


def stream(events: list[InferenceEvent], **fields: Any) -> bytes:
    projection = ResponsesStream(shape(**fields))
    return projection.start() + b"".join(projection.push(event) for event in events)


def events_of(raw: bytes) -> list[dict[str, Any]]:
    out = []
    for name, data in frames(raw):
        event = json.loads(data)
        assert event["type"] == name
        out.append(event)
    return out


def types(raw: bytes) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events_of(raw)]


@pytest.mark.parametrize("name", [*ANSWERS, "failed"])
def test_every_event_is_valid_and_numbered(name: str) -> None:
    events = events_of(stream(ANSWERS.get(name, FAILED)))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        parsed = EVENT.validate_python(event)
        assert parsed.type == event["type"]
        Response.model_validate(event["response"]) if "response" in event else None
    assert events[-1]["type"] in ("response.completed", "response.incomplete", "response.failed")


def test_order_of_a_plain_text() -> None:
    assert types(stream(TEXT)) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]


def test_order_with_reasoning_text_and_calls() -> None:
    reasoning = ["reasoning_text.delta", "reasoning_summary_text.delta"]
    arguments = "function_call_arguments."
    assert types(stream(FULL)) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_summary_part.added",
        *reasoning,
        *reasoning,
        "reasoning_text.done",
        "content_part.done",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        arguments + "delta",
        arguments + "delta",
        arguments + "done",
        "output_item.done",
        "output_item.added",
        arguments + "delta",
        arguments + "done",
        "output_item.done",
        "completed",
    ]


@pytest.mark.parametrize("name", ANSWERS)
def test_one_identity_for_each_item(name: str) -> None:
    events = events_of(stream(ANSWERS[name]))
    final = events[-1]["response"]
    added = [event for event in events if event["type"] == "response.output_item.added"]
    assert [event["output_index"] for event in added] == list(range(len(final["output"])))
    ids = [item["id"] for item in final["output"]]
    assert len(set(ids)) == len(ids)
    assert [event["item"]["id"] for event in added] == ids
    assert all(event["item"]["status"] == "in_progress" for event in added)
    for event in events:
        if "item_id" in event:
            assert ids[event["output_index"]] == event["item_id"]
    done = {e["output_index"]: e["item"] for e in events if e["type"] == "response.output_item.done"}
    assert [done[index] for index in range(len(ids))] == final["output"]
    for item in final["output"]:
        if item["type"] == "function_call":
            assert item["call_id"] != item["id"]


def test_ids_differ_between_answers() -> None:
    first, second = (events_of(stream(FULL))[-1]["response"]["output"] for _ in range(2))
    assert not {item["id"] for item in first} & {item["id"] for item in second}
    assert new_response_id() != new_response_id()


@pytest.mark.parametrize("fragments", [('{"a":"x",', '"n":[1,2]}'), ("{}",)])
def test_arguments_agree_everywhere(fragments: tuple[str, ...]) -> None:
    events = events_of(stream([*call(0, "f", *fragments), finish(FinishReason.TOOL_CALLS)]))
    whole = "".join(fragments)
    deltas = [e["delta"] for e in events if e["type"] == "response.function_call_arguments.delta"]
    (done,) = [e for e in events if e["type"] == "response.function_call_arguments.done"]
    (item,) = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    (added,) = [e["item"] for e in events if e["type"] == "response.output_item.added"]
    assert added["arguments"] == ""
    assert "".join(deltas) == done["arguments"] == item["arguments"] == whole
    assert events[-1]["response"]["output"][0]["arguments"] == whole
    assert (done["name"], done["call_id"]) == ("f", "call_0")


@pytest.mark.parametrize("answer", [CUT_THINKING, CUT_TEXT, [finish(FinishReason.LENGTH)]])
def test_cut_answers_are_incomplete(answer: list[InferenceEvent]) -> None:
    last = events_of(stream(answer))[-1]
    assert last["type"] == "response.incomplete"
    folded = json.loads(fold_responses(answer, shape()))
    for response in (last["response"], folded):
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response["usage"]["total_tokens"] == 18
        assert all(item["status"] == "incomplete" for item in response["output"])


def test_whole_items_of_a_cut_answer_stay_complete() -> None:
    answer = [*THOUGHT, TextDelta("ab"), finish(FinishReason.LENGTH)]
    response = json.loads(fold_responses(answer, shape()))
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]


def test_failure_closes_items_and_says_failed() -> None:
    events = events_of(stream(FAILED))
    assert events[-2]["item"]["status"] == "incomplete"
    response = events[-1]["response"]
    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
    assert response["error"]["neuron_code"] == "worker_died"
    with pytest.raises(WorkerDied):
        fold_responses(FAILED, shape())
    with pytest.raises(InternalError):
        fold_responses([TextDelta("a")], shape())


@pytest.mark.parametrize("name", ANSWERS)
def test_streamed_and_folded_agree(name: str) -> None:
    def without_ids(response: dict[str, Any]) -> dict[str, Any]:
        return {**response, "output": [{**item, "id": ""} for item in response["output"]]}

    final = events_of(stream(ANSWERS[name]))[-1]["response"]
    folded = json.loads(fold_responses(ANSWERS[name], shape()))
    assert without_ids(folded) == without_ids(final)
    Response.model_validate(folded)
    assert folded["usage"]["input_tokens_details"]["cached_tokens"] == 4
    assert folded["usage"]["output_tokens_details"]["reasoning_tokens"] == 3


def test_text_after_a_call_is_an_item_of_its_own() -> None:
    answer = [TextDelta("a"), *call(0, "f", "{}"), TextDelta("b"), finish(FinishReason.TOOL_CALLS)]
    output = json.loads(fold_responses(answer, shape()))["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "message"]


def test_an_empty_answer_has_a_message() -> None:
    (item,) = json.loads(fold_responses(EMPTY, shape()))["output"]
    assert (item["type"], item["content"][0]["text"]) == ("message", "")


def test_thinking_shown_in_the_message_when_asked() -> None:
    (item,) = json.loads(fold_responses([*THOUGHT, TextDelta("x"), finish()], shape(include_thinking=True)))["output"]
    assert item["content"][0]["text"] == "<think>let me see</think>x"


def test_log_probabilities() -> None:
    answer: list[InferenceEvent] = [TextDelta("hi", LOGPROBS), finish()]
    events = events_of(stream(answer, logprobs=True))
    for event in events:
        EVENT.validate_python(event)
    deltas = [e for e in events if e["type"] == "response.output_text.delta"]
    assert deltas[0]["logprobs"][0]["token"] == "hi"
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"][0]["bytes"] == [104, 105]


def test_hostile_text() -> None:
    raw = stream([TextDelta(HOSTILE), finish()])
    assert events_of(raw)[-1]["response"]["output"][0]["content"][0]["text"] == HOSTILE
    assert b"\xed\xa0" not in stream([TextDelta("a\ud83cb"), finish()])


def test_official_client_reads_both() -> None:
    seen = list(client(stream(FULL), "text/event-stream").responses.create(model="m", input="x", stream=True))
    assert seen[-1].type == "response.completed"
    assert seen[-1].response.output_text == "I look."
    body = client(fold_responses(FULL, shape()), "application/json").responses.create(model="m", input="x")
    assert [item.type for item in body.output] == ["reasoning", "message", "function_call", "function_call"]
    with client(stream(FULL), "text/event-stream").responses.stream(model="m", input="x") as events:
        final = events.get_final_response()
    assert final.output_text == "I look."
