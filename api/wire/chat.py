"""Chat completions as projections of InferenceEvent: the stream's frames, and the body that folds the same events."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from neuron.actors.events import (
    Failed,
    Finish,
    InferenceEvent,
    Queued,
    ReasoningClosed,
    ReasoningDelta,
    ReasoningOpened,
    Start,
    TextDelta,
    TokenLogprob,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from neuron.api.errors import error_bytes
from neuron.api.wire.encoding import DONE, comment, frame, json_bytes, json_text, new_id
from neuron.api.wire.figures import logprob_list, timings_object, usage_object
from neuron.runtime.errors import InternalError


class ChatShape(msgspec.Struct, frozen=True, kw_only=True):
    """How one answer is written. `created` is in whole seconds since 1970.

    `include_thinking`: content carries the reasoning inside the model's markers and the reasoning keys are absent.
    """

    id: str
    created: int
    model: str
    include_usage: bool = False
    include_thinking: bool = False
    logprobs: bool = False


def new_chat_id() -> str:
    return new_id("chatcmpl-")


class ChatStream:
    """Frames of one stream. `start()` goes out before prefill; after Finish or Failed nothing more may be pushed."""

    def __init__(self, shape: ChatShape) -> None:
        self.shape = shape
        head = {"id": shape.id, "object": "chat.completion.chunk", "created": shape.created, "model": shape.model}
        #: Everything of a chunk before its choices; usage, always last, is null in all chunks but its own.
        self._head = b"data: " + json_bytes(head)[:-1] + b',"choices":['
        self._tail = b',"usage":null}\n\n' if shape.include_usage else b"}\n\n"
        self._delta = self._head + b'{"index":0,"delta":{'
        self._end = b'},"finish_reason":null}]' + self._tail
        self._content = self._delta + b'"content":'
        self.ended = False

    def start(self) -> bytes:
        return self._delta + b'"role":"assistant"' + self._end

    def push(self, event: InferenceEvent) -> bytes:
        """The frames one event becomes; b"" for an event that shows nothing."""
        match event:
            case TextDelta():
                return self._text(event.text, event.logprobs)
            case ReasoningDelta() if self.shape.include_thinking:
                return self._text(event.text, event.logprobs)
            case ReasoningDelta():
                text = json_text(event.text)
                return self._delta + b'"reasoning_content":' + text + b',"reasoning":' + text + self._end
            case ReasoningOpened() | ReasoningClosed():
                return self._text(event.marker, ()) if self.shape.include_thinking else b""
            case ToolCallStart():
                head = {"index": event.index, "id": event.call_id, "type": "function"}
                function = {"name": event.name, "arguments": ""}
                return self._delta + b'"tool_calls":' + json_bytes([{**head, "function": function}]) + self._end
            case ToolCallArguments():
                call = b'[{"index":%d,"function":{"arguments":%b}}]' % (event.index, json_text(event.fragment))
                return self._delta + b'"tool_calls":' + call + self._end
            case Queued():
                return comment(f"queued, position {event.position}")
            case Finish():
                return self._finish(event)
            case Failed():
                self.ended = True
                return frame(error_bytes(event.error))
            case Start() | ToolCallEnd():
                return b""

    def _text(self, text: str, logprobs: tuple[TokenLogprob, ...]) -> bytes:
        if not self.shape.logprobs:
            return self._content + json_text(text) + self._end
        entries = json_bytes(logprob_list(logprobs))
        middle = b'},"logprobs":{"content":' + entries + b'},"finish_reason":null}]'
        return self._content + json_text(text) + middle + self._tail

    def _finish(self, event: Finish) -> bytes:
        self.ended = True
        choice: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": event.reason.value}
        if event.stop_sequence is not None:
            choice["stop_reason"] = event.stop_sequence
        last = self._head + json_bytes(choice) + b"]"
        figures = b',"timings":' + json_bytes(timings_object(event))
        usage = b',"usage":' + json_bytes(usage_object(event.usage, event.timings)) + b"}\n\n"
        if self.shape.include_usage:
            return last + self._tail + self._head + b"]" + figures + usage + DONE
        return last + figures + usage + DONE


@dataclass(slots=True)
class ChatFold:
    """The body of an answer that is not streamed. `push` every event, then `body()`; `error` is set by Failed."""

    shape: ChatShape
    error: Exception | None = None
    _content: list[str] = field(default_factory=list)
    _reasoning: list[str] = field(default_factory=list)
    _calls: list[dict[str, Any]] = field(default_factory=list)
    _logprobs: list[TokenLogprob] = field(default_factory=list)
    _finish: Finish | None = None

    def push(self, event: InferenceEvent) -> None:
        match event:
            case TextDelta():
                self._content.append(event.text)
                self._logprobs.extend(event.logprobs)
            case ReasoningDelta() if self.shape.include_thinking:
                self._content.append(event.text)
                self._logprobs.extend(event.logprobs)
            case ReasoningDelta():
                self._reasoning.append(event.text)
            case ReasoningOpened() | ReasoningClosed():
                if self.shape.include_thinking:
                    self._content.append(event.marker)
            case ToolCallStart():
                function = {"name": event.name, "arguments": ""}
                self._calls.append({"id": event.call_id, "type": "function", "function": function})
            case ToolCallEnd():
                self._calls[event.index]["function"]["arguments"] = event.arguments
            case Finish():
                self._finish = event
            case Failed():
                self.error = event.error
            case Start() | Queued() | ToolCallArguments():
                pass

    def body(self) -> bytes:
        """Raises the error of a Failed; InternalError when the events did not end."""
        if self.error is not None:
            raise self.error
        if self._finish is None:
            raise InternalError("The answer has no end.")
        choice: dict[str, Any] = {"index": 0, "message": self._message(), "finish_reason": self._finish.reason.value}
        if self.shape.logprobs:
            choice["logprobs"] = {"content": logprob_list(self._logprobs)}
        if self._finish.stop_sequence is not None:
            choice["stop_reason"] = self._finish.stop_sequence
        return json_bytes(
            {
                "id": self.shape.id,
                "object": "chat.completion",
                "created": self.shape.created,
                "model": self.shape.model,
                "choices": [choice],
                "timings": timings_object(self._finish),
                "usage": usage_object(self._finish.usage, self._finish.timings),
            }
        )

    def _message(self) -> dict[str, Any]:
        content = "".join(self._content)
        message: dict[str, Any] = {"role": "assistant", "content": content if content or not self._calls else None}
        if self._reasoning:
            message["reasoning_content"] = message["reasoning"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = self._calls
        return message
