"""Responses as a projection of InferenceEvent: typed, numbered events, and the body that folds the same events.

Items follow one another: an item is closed before the next opens, each with one id from its first event to the final
response. Reasoning is sent both as reasoning_text and as a summary, since clients read one or the other.
"""

from typing import Any

import msgspec

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
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from neuron.api.wire.encoding import comment, json_bytes, json_text, named_frame, new_id
from neuron.api.wire.figures import responses_usage_object, timings_object
from neuron.api.wire.responses_items import Item, MessageItem, ReasoningItem, ToolCallItem
from neuron.runtime.errors import InternalError, NeuronError

IN_PROGRESS = "in_progress"
COMPLETED = "completed"
INCOMPLETE = "incomplete"
FAILED = "failed"


class ResponsesShape(msgspec.Struct, frozen=True, kw_only=True):
    """How one answer is written, and what it repeats of the request. `tools` are in Responses form.

    `include_thinking`: reasoning stands in the message, inside the model's markers, and there are no reasoning items.
    """

    id: str
    created: int
    model: str
    include_thinking: bool = False
    logprobs: bool = False
    instructions: str | None = None
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    reasoning: dict[str, Any] = {}
    text: dict[str, Any] = msgspec.field(default_factory=lambda: {"format": {"type": "text"}})
    metadata: dict[str, str] = {}


def new_response_id() -> str:
    return new_id("resp_")


class ResponsesStream:
    """Frames of one stream. `start()` goes out before prefill; after Finish or Failed nothing more may be pushed."""

    def __init__(self, shape: ResponsesShape) -> None:
        self.shape = shape
        self.ended = False
        #: The final response's object, set by Finish or Failed.
        self.response: dict[str, Any] | None = None
        self.error: NeuronError | None = None
        self._sequence = 0
        self._items: list[Item] = []
        self._open: Item | None = None

    def start(self) -> bytes:
        response = self._response(IN_PROGRESS)
        created = self._event("response.created", {"response": response})
        return created + self._event("response.in_progress", {"response": response})

    def push(self, event: InferenceEvent) -> bytes:
        """The frames one event becomes; b"" for an event that shows nothing."""
        match event:
            case TextDelta():
                return self._text(event)
            case ReasoningDelta() if self.shape.include_thinking:
                return self._text(TextDelta(event.text, event.logprobs))
            case ReasoningDelta():
                return self._reasoning(event.text)
            case ReasoningOpened() | ReasoningClosed():
                return (
                    self._text(TextDelta(event.marker)) if self.shape.include_thinking else self._close(ReasoningItem)
                )
            case ToolCallStart():
                return self._opened(ToolCallItem(new_id("fc_"), len(self._items), event.call_id, event.name))
            case ToolCallArguments():
                return self._deltas(event.fragment)
            case ToolCallEnd():
                return self._close(ToolCallItem)
            case Queued():
                return comment(f"queued, position {event.position}")
            case Finish():
                return self._finish(event)
            case Failed():
                return self._fail(event)
            case Start():
                return b""

    # -- items

    def _text(self, event: TextDelta) -> bytes:
        out = b""
        item = self._open
        if not isinstance(item, MessageItem):
            item = MessageItem(new_id("msg_"), len(self._items), self.shape.logprobs)
            out = self._opened(item)
        item.logprobs.extend(event.logprobs if self.shape.logprobs else ())
        return out + self._deltas(event.text, event)

    def _reasoning(self, text: str) -> bytes:
        out = b""
        if not isinstance(self._open, ReasoningItem):
            out = self._opened(ReasoningItem(new_id("rs_"), len(self._items)))
        return out + self._deltas(text)

    def _opened(self, item: Item) -> bytes:
        out = self._close()
        self._open = item
        self._items.append(item)
        out += self._event("response.output_item.added", {"output_index": item.index, "item": item.body(IN_PROGRESS)})
        return out + b"".join(self._event(name, {**item.place, **fields}) for name, fields in item.opening())

    def _deltas(self, text: str, event: TextDelta | None = None) -> bytes:
        """The fast path: one encoded string inside prebuilt JSON."""
        item = self._open
        if item is None:
            return b""
        item.pieces.append(text)
        encoded = json_text(text)
        logprobs = b""
        if isinstance(item, MessageItem):
            entries = item.delta_logprobs(event) if event is not None else []
            logprobs = b',"logprobs":' + json_bytes(entries)
        out = b""
        for name, head in item.delta_heads:
            number = b',"sequence_number":%d}' % self._sequence
            self._sequence += 1
            out += named_frame(name, head + encoded + logprobs + number)
        return out

    def _close(self, kind: type[Item] | None = None, status: str = COMPLETED) -> bytes:
        """Close the open item (only if it is of `kind`, when given)."""
        item = self._open
        if item is None or (kind is not None and not isinstance(item, kind)):
            return b""
        self._open = None
        item.status = status
        out = b"".join(self._event(name, {**item.place, **fields}) for name, fields in item.closing())
        return out + self._event("response.output_item.done", {"output_index": item.index, "item": item.body(status)})

    # -- the end

    def _finish(self, event: Finish) -> bytes:
        cut = event.reason is FinishReason.LENGTH
        out = b""
        if not cut and not any(isinstance(item, MessageItem | ToolCallItem) for item in self._items):
            out += self._opened(MessageItem(new_id("msg_"), len(self._items), self.shape.logprobs))
        status = INCOMPLETE if cut else COMPLETED
        out += self._close(status=status)
        self.ended = True
        self.response = self._response(status, finish=event)
        return out + self._event(f"response.{status}", {"response": self.response})

    def _fail(self, event: Failed) -> bytes:
        out = self._close(status=INCOMPLETE)
        self.ended = True
        self.error = event.error
        self.response = self._response(FAILED, error=event.error, usage=event.usage)
        return out + self._event("response.failed", {"response": self.response})

    def _response(
        self,
        status: str,
        *,
        finish: Finish | None = None,
        error: NeuronError | None = None,
        usage: Usage | None = None,
    ) -> dict[str, Any]:
        shape = self.shape
        body: dict[str, Any] = {
            "id": shape.id,
            "object": "response",
            "created_at": shape.created,
            "status": status,
            "background": False,
            "error": None if error is None else _error_object(error),
            "incomplete_details": {"reason": "max_output_tokens"} if status == INCOMPLETE else None,
            "instructions": shape.instructions,
            "max_output_tokens": shape.max_output_tokens,
            "metadata": shape.metadata,
            "model": shape.model,
            "output": [item.body(item.status or IN_PROGRESS) for item in self._items],
            "parallel_tool_calls": shape.parallel_tool_calls,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None, **shape.reasoning},
            "store": False,
            "temperature": shape.temperature,
            "text": shape.text,
            "tool_choice": shape.tool_choice,
            "tools": list(shape.tools),
            "top_p": shape.top_p,
            "truncation": "disabled",
        }
        if finish is not None:
            body["timings"] = timings_object(finish)
            body["usage"] = responses_usage_object(finish.usage, finish.timings)
        else:
            body["usage"] = None if usage is None else responses_usage_object(usage)
        return body

    def _event(self, name: str, fields: dict[str, Any]) -> bytes:
        number = self._sequence
        self._sequence += 1
        return named_frame(name, json_bytes({"type": name, "sequence_number": number, **fields}))


def _error_object(error: NeuronError) -> dict[str, Any]:
    """`code` is one of OpenAI's two; the daemon's own code and extras stand beside it."""
    code = "rate_limit_exceeded" if error.code == "rate_limit_exceeded" else "server_error"
    return {"code": code, "message": error.message, "type": error.type, "neuron_code": error.code}


def responses_body(stream: ResponsesStream) -> bytes:
    """The body after all events were pushed, for callers that fold while events arrive.

    Raises the error of a Failed; InternalError when the end is missing.
    """
    if stream.error is not None:
        raise stream.error
    if stream.response is None:
        raise InternalError("The answer has no end.")
    return json_bytes(stream.response)
