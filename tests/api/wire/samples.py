"""Answers as lists of events, and helpers that read frames back."""

import json
from collections.abc import Iterable
from typing import Any

import httpx
from openai import OpenAI

from neuron.actors.events import (
    Failed,
    Finish,
    FinishReason,
    InferenceEvent,
    Queued,
    ReasoningClosed,
    ReasoningDelta,
    ReasoningOpened,
    Start,
    TextDelta,
    Timings,
    TokenLogprob,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from neuron.api.wire.chat import ChatFold, ChatShape
from neuron.api.wire.responses import ResponsesShape, ResponsesStream, responses_body
from neuron.runtime.errors import WorkerDied

USAGE = Usage(prompt_tokens=11, completion_tokens=7, reasoning_tokens=3, cached_tokens=4)
TIMINGS = Timings(queue_ms=0.5, prefill_ms=12.4, decode_ms=100.0, prefill_tokens=7, decode_tokens=6, cached_tokens=4)
HOSTILE = 'a\nb\r\ndata: x\u2028\u2029\x85\x0c"\\ \U0001f98a'
LOGPROBS = (TokenLogprob("hi", -0.25, b"hi", (TokenLogprob("hi", -0.25, b"hi"), TokenLogprob("ho", -1.5, b"ho"))),)


def finish(reason: FinishReason = FinishReason.STOP, stop: str | None = None) -> Finish:
    return Finish(reason, USAGE, TIMINGS, stop)


def call(index: int, name: str, *fragments: str) -> list[InferenceEvent]:
    arguments = "".join(fragments)
    return [
        ToolCallStart(index, f"call_{index}", name),
        *(ToolCallArguments(index, fragment) for fragment in fragments),
        ToolCallEnd(index, arguments),
    ]


THOUGHT: list[InferenceEvent] = [
    ReasoningOpened("<think>"),
    ReasoningDelta("let me "),
    ReasoningDelta("see"),
    ReasoningClosed("</think>"),
]
TEXT: list[InferenceEvent] = [Start(11), TextDelta("Hel"), TextDelta("lo"), finish()]
FULL: list[InferenceEvent] = [
    Start(11),
    Queued(2, 1.0),
    *THOUGHT,
    TextDelta("I look."),
    *call(0, "glob", '{"a":"x",', '"n":[1,2]}'),
    *call(1, "now", "{}"),
    finish(FinishReason.TOOL_CALLS),
]
CUT_THINKING: list[InferenceEvent] = [*THOUGHT[:-1], finish(FinishReason.LENGTH)]
CUT_TEXT: list[InferenceEvent] = [TextDelta("ab"), finish(FinishReason.LENGTH)]
FAILED: list[InferenceEvent] = [TextDelta("ab"), Failed(WorkerDied("The worker ended."))]
EMPTY: list[InferenceEvent] = [finish()]
ANSWERS = {"text": TEXT, "full": FULL, "cut thinking": CUT_THINKING, "cut text": CUT_TEXT, "empty": EMPTY}


def frames(raw: bytes) -> list[tuple[str | None, str]]:
    """(event name, data) of each frame; comments are checked and left out."""
    text = raw.decode()
    assert text.endswith("\n\n")
    out = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        lines = block.split("\n")
        if lines[0].startswith(":"):
            assert len(lines) == 1
            continue
        name = lines.pop(0).removeprefix("event: ") if lines[0].startswith("event: ") else None
        (data,) = lines
        assert data.startswith("data: ")
        assert len(data.splitlines()) == 1
        out.append((name, data.removeprefix("data: ")))
    return out


def objects(raw: bytes) -> list[Any]:
    return [json.loads(data) for _, data in frames(raw) if data != "[DONE]"]


def client(body: bytes, content_type: str) -> OpenAI:
    """The official client against a canned answer."""

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": content_type}, content=body)

    # The client's releases differ in which httpx they name; both work.
    http: Any = httpx.Client(transport=httpx.MockTransport(answer))
    return OpenAI(api_key="k", base_url="http://test/v1", http_client=http, max_retries=0)


def fold_chat(events: Iterable[InferenceEvent], shape: ChatShape) -> bytes:
    """The JSON body of all events of one answer; raises as `ChatFold.body` does."""
    fold = ChatFold(shape)
    for event in events:
        fold.push(event)
    return fold.body()


def fold_responses(events: Iterable[InferenceEvent], shape: ResponsesShape) -> bytes:
    """The same for the other front door; raises what `responses_body` does."""
    stream = ResponsesStream(shape)
    for event in events:
        stream.push(event)
    return responses_body(stream)
