"""Output items of the Responses API: reasoning, message, function call. Each knows its bodies and events."""

from collections.abc import Iterator
from typing import Any

from neuron.actors.events import TextDelta, TokenLogprob
from neuron.api.wire.encoding import json_bytes
from neuron.api.wire.figures import logprob_list

Fields = dict[str, Any]


class Item:
    """`pieces` joined are the item's text (or arguments). `place` is what every event of the item carries."""

    #: Event names of a delta, each with the fields that are its own.
    delta_events: tuple[tuple[str, Fields], ...] = ()

    def __init__(self, item_id: str, index: int) -> None:
        self.id = item_id
        self.index = index
        self.status: str | None = None
        self.pieces: list[str] = []
        self.place: Fields = {"item_id": item_id, "output_index": index}
        #: JSON up to the delta's text; the sequence number follows it.
        self.delta_heads = tuple(
            (name, json_bytes({"type": name, **self.place, **fields})[:-1] + b',"delta":')
            for name, fields in self.delta_events
        )

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def body(self, status: str) -> Fields:
        raise TypeError("an item of no kind")

    def opening(self) -> Iterator[tuple[str, Fields]]:
        """Events after output_item.added."""
        yield from ()

    def closing(self) -> Iterator[tuple[str, Fields]]:
        """Events before output_item.done."""
        yield from ()


class MessageItem(Item):
    delta_events = (("response.output_text.delta", {"content_index": 0}),)

    def __init__(self, item_id: str, index: int, with_logprobs: bool) -> None:
        super().__init__(item_id, index)
        self.with_logprobs = with_logprobs
        self.logprobs: list[TokenLogprob] = []

    def body(self, status: str) -> Fields:
        content = [self._part(self.text)] if self.pieces or status != "in_progress" else []
        return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": content}

    def opening(self) -> Iterator[tuple[str, Fields]]:
        yield "response.content_part.added", {"content_index": 0, "part": self._part("")}

    def closing(self) -> Iterator[tuple[str, Fields]]:
        text = self.text
        done = {"content_index": 0, "text": text, "logprobs": self._logprobs()}
        yield "response.output_text.done", done
        yield "response.content_part.done", {"content_index": 0, "part": self._part(text)}

    def delta_logprobs(self, event: TextDelta) -> list[Fields]:
        return logprob_list(event.logprobs) if self.with_logprobs else []

    def _logprobs(self) -> list[Fields]:
        return logprob_list(self.logprobs) if self.with_logprobs else []

    def _part(self, text: str) -> Fields:
        return {
            "type": "output_text",
            "text": text,
            "annotations": [],
            "logprobs": self._logprobs() if text else [],
        }


class ReasoningItem(Item):
    delta_events = (
        ("response.reasoning_text.delta", {"content_index": 0}),
        ("response.reasoning_summary_text.delta", {"summary_index": 0}),
    )

    def body(self, status: str) -> Fields:
        text = self.text
        summary = [{"type": "summary_text", "text": text}] if text else []
        content = [{"type": "reasoning_text", "text": text}] if text else []
        return {"id": self.id, "type": "reasoning", "status": status, "summary": summary, "content": content}

    def opening(self) -> Iterator[tuple[str, Fields]]:
        yield "response.content_part.added", {"content_index": 0, "part": {"type": "reasoning_text", "text": ""}}
        summary = {"type": "summary_text", "text": ""}
        yield "response.reasoning_summary_part.added", {"summary_index": 0, "part": summary}

    def closing(self) -> Iterator[tuple[str, Fields]]:
        text = self.text
        yield "response.reasoning_text.done", {"content_index": 0, "text": text}
        yield "response.content_part.done", {"content_index": 0, "part": {"type": "reasoning_text", "text": text}}
        yield "response.reasoning_summary_text.done", {"summary_index": 0, "text": text}
        summary = {"type": "summary_text", "text": text}
        yield "response.reasoning_summary_part.done", {"summary_index": 0, "part": summary}


class ToolCallItem(Item):
    delta_events = (("response.function_call_arguments.delta", {}),)

    def __init__(self, item_id: str, index: int, call_id: str, name: str) -> None:
        super().__init__(item_id, index)
        self.call_id = call_id
        self.name = name

    def body(self, status: str) -> Fields:
        return {
            "id": self.id,
            "type": "function_call",
            "status": status,
            "call_id": self.call_id,
            "name": self.name,
            "arguments": self.text,
        }

    def closing(self) -> Iterator[tuple[str, Fields]]:
        yield (
            "response.function_call_arguments.done",
            {"call_id": self.call_id, "name": self.name, "arguments": self.text},
        )
