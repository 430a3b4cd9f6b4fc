"""Chat chunks and bodies: parity, framing, usage, what gateways and the official client read."""

import json
from typing import Any

import pytest
from openai import APIError
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from neuron.actors.events import FinishReason, InferenceEvent, TextDelta
from neuron.api.wire.chat import ChatShape, ChatStream, new_chat_id
from neuron.runtime.errors import InternalError, WorkerDied
from tests.api.wire.samples import (
    ANSWERS,
    CUT_THINKING,
    EMPTY,
    FAILED,
    FULL,
    HOSTILE,
    LOGPROBS,
    TEXT,
    THOUGHT,
    client,
    finish,
    fold_chat,
    frames,
    objects,
)


def shape(**fields: Any) -> ChatShape:
    return ChatShape(id="chatcmpl-1", created=1_700_000_000, model="org/m", **fields)


def stream(events: list[InferenceEvent], **fields: Any) -> bytes:
    projection = ChatStream(shape(**fields))
    return projection.start() + b"".join(projection.push(event) for event in events)


def joined(raw: bytes) -> dict[str, Any]:
    """The message that a client builds from the deltas, with the finish reason and usage."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "finish": None, "usage": None}
    for chunk in objects(raw):
        if chunk.get("usage"):
            message["usage"] = chunk["usage"]
        for choice in chunk["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content", "")
            message["reasoning"] += delta.get("reasoning_content", "")
            assert delta.get("reasoning_content") == delta.get("reasoning")
            for entry in delta.get("tool_calls", []):
                if "name" in entry["function"]:
                    assert entry["index"] == len(message["calls"])
                    message["calls"].append({"id": entry["id"], "name": entry["function"]["name"], "arguments": ""})
                message["calls"][entry["index"]]["arguments"] += entry["function"]["arguments"]
            if choice["finish_reason"] is not None:
                assert message["finish"] is None
                message["finish"] = choice["finish_reason"]
    return message


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("name", ANSWERS)
def test_streamed_and_folded_agree(name: str, thinking: bool) -> None:
    streamed = joined(stream(ANSWERS[name], include_thinking=thinking))
    body = json.loads(fold_chat(ANSWERS[name], shape(include_thinking=thinking)))
    message = body["choices"][0]["message"]
    calls = [{"id": c["id"], **c["function"]} for c in message.get("tool_calls", [])]
    assert streamed == {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning_content", ""),
        "calls": calls,
        "finish": body["choices"][0]["finish_reason"],
        "usage": body["usage"],
    }


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("name", ANSWERS)
def test_every_chunk_has_the_required_keys(name: str, usage: bool) -> None:
    raw = stream(ANSWERS[name], include_usage=usage)
    assert frames(raw)[-1] == (None, "[DONE]")
    chunks = objects(raw)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant"}
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
        head = {key: chunk[key] for key in ("id", "object", "created", "model")}
        assert head == {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1_700_000_000,
            "model": "org/m",
        }
        for choice in chunk["choices"]:
            assert {"index", "delta", "finish_reason"} <= set(choice)
            assert choice["delta"] is not None
            assert None not in choice["delta"].values()


def test_usage_chunk_only_when_asked() -> None:
    asked = objects(stream(TEXT, include_usage=True))
    assert asked[-1]["choices"] == []
    assert asked[-1]["usage"]["total_tokens"] == 18
    assert asked[-2]["choices"][0]["finish_reason"] == "stop"
    assert all(chunk["usage"] is None for chunk in asked[:-1])
    plain = objects(stream(TEXT))
    assert all(chunk["choices"] for chunk in plain)
    assert plain[-1]["usage"] == asked[-1]["usage"]
    assert all("usage" not in chunk for chunk in plain[:-1])


def test_usage_and_timings_for_the_gateway() -> None:
    chunk = objects(stream(TEXT))[-1]
    assert list(chunk)[-1] == "usage"
    assert chunk["usage"] == {
        "prompt_tokens": 11,
        "completion_tokens": 7,
        "total_tokens": 18,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 3},
        "helexa_timing": {"prefill_ms": 12, "decode_ms": 100, "prefill_tokens": 7},
    }
    assert chunk["timings"]["predicted_per_second"] == 60.0
    body = fold_chat(TEXT, shape())
    for key in (b'"prompt_tokens":', b'"completion_tokens":', b'"cached_tokens":'):
        assert body.count(key) == 1
        assert body.index(key) > body.index(b'"usage"')
    assert list(json.loads(body))[-1] == "usage"


def test_reasoning_in_one_place_only() -> None:
    plain = joined(stream(FULL))
    assert (plain["reasoning"], plain["content"]) == ("let me see", "I look.")
    shown = stream(FULL, include_thinking=True)
    assert joined(shown)["content"] == "<think>let me see</think>I look."
    assert b'"reasoning' not in shown.replace(b'"reasoning_tokens"', b"")
    cut = joined(stream(CUT_THINKING, include_thinking=True))
    assert (cut["content"], cut["finish"]) == ("<think>let me see", "length")


def test_content_is_null_only_beside_calls() -> None:
    message = json.loads(fold_chat([*FULL[7:-1], finish(FinishReason.TOOL_CALLS)], shape()))["choices"][0]["message"]
    assert message["content"] is None
    assert json.loads(fold_chat(EMPTY, shape()))["choices"][0]["message"]["content"] == ""


def test_names_come_once_and_calls_in_order() -> None:
    entries = [
        entry
        for chunk in objects(stream(FULL))
        for choice in chunk["choices"]
        for entry in choice["delta"].get("tool_calls", [])
    ]
    assert [entry["index"] for entry in entries] == [0, 0, 0, 1, 1]
    assert [entry["function"].get("name") for entry in entries] == ["glob", None, None, "now", None]
    assert all("name" not in entry["function"] for entry in entries if "id" not in entry)


def test_hostile_text_survives_on_one_line() -> None:
    raw = stream([TextDelta(HOSTILE), finish()])
    assert joined(raw)["content"] == HOSTILE
    body = json.loads(fold_chat([TextDelta(HOSTILE), finish()], shape()))
    assert body["choices"][0]["message"]["content"] == HOSTILE
    for data in (stream([TextDelta("a\ud83cb"), finish()]), fold_chat([TextDelta("a\ud83cb"), finish()], shape())):
        assert "a\ufffdb" in data.decode()


def test_log_probabilities() -> None:
    events: list[InferenceEvent] = [TextDelta("hi", LOGPROBS), finish()]
    chunk = objects(stream(events, logprobs=True))[1]
    folded = json.loads(fold_chat(events, shape(logprobs=True)))
    for choice in (chunk["choices"][0], folded["choices"][0]):
        (entry,) = choice["logprobs"]["content"]
        assert (entry["token"], entry["logprob"], entry["bytes"]) == ("hi", -0.25, [104, 105])
        assert [top["token"] for top in entry["top_logprobs"]] == ["hi", "ho"]
    ChatCompletion.model_validate(folded, strict=True)
    assert "logprobs" not in objects(stream(events))[1]["choices"][0]


def test_stop_sequence_is_named() -> None:
    events: list[InferenceEvent] = [TextDelta("a"), finish(stop="END")]
    assert objects(stream(events))[-1]["choices"][0]["stop_reason"] == "END"
    assert json.loads(fold_chat(events, shape()))["choices"][0]["stop_reason"] == "END"


def test_failure_is_one_error_frame_without_done() -> None:
    raw = stream(FAILED)
    last = frames(raw)[-1]
    assert json.loads(last[1])["error"]["code"] == "worker_died"
    assert b"[DONE]" not in raw
    with pytest.raises(WorkerDied):
        fold_chat(FAILED, shape())
    with pytest.raises(InternalError):
        fold_chat([TextDelta("a")], shape())


def test_queue_position_is_a_comment() -> None:
    assert b"\n\n: queued, position 2\n\n" in stream(FULL)


def test_official_client_reads_both() -> None:
    chunks = list(
        client(stream(FULL, include_usage=True), "text/event-stream").chat.completions.create(
            model="m", messages=[], stream=True
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "I look."
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 7
    body = client(fold_chat(FULL, shape()), "application/json").chat.completions.create(model="m", messages=[])
    calls = body.choices[0].message.tool_calls or []
    assert [call.function.arguments for call in calls if call.type == "function"] == ['{"a":"x","n":[1,2]}', "{}"]
    with pytest.raises(APIError):
        list(client(stream(FAILED), "text/event-stream").chat.completions.create(model="m", messages=[], stream=True))


def test_official_stream_helper_accumulates() -> None:
    with client(stream(FULL), "text/event-stream").chat.completions.stream(model="m", messages=[]) as events:
        final = events.get_final_completion()
    calls = final.choices[0].message.tool_calls or []
    assert [call.function.name for call in calls] == ["glob", "now"]
    assert final.choices[0].finish_reason == "tool_calls"


def test_ids_differ() -> None:
    assert len({new_chat_id() for _ in range(100)}) == 100


def test_thinking_only_chunks_have_no_markers_by_default() -> None:
    assert b"think" not in stream([*THOUGHT, finish()]).replace(b"reasoning", b"")
