"""Tells data from template text in a rendered prompt.

Control-token texts inside data (user text, tool results, tool descriptions, ...) are marked before rendering with
characters that no text holds; afterwards the marks say where such data came out, and are removed.
"""

import re
from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from neuron.actors.text.control import ControlMatcher

Json = dict[str, Any]
Span = tuple[int, int]
#: Noncharacters: never assigned, never in exchanged text. Three that the data does not hold are chosen.
_CONTEXT = 6
_CANDIDATES = [chr(code) for code in range(0xFDD0, 0xFDF0)]


class Marks(msgspec.Struct, frozen=True):
    """`cut` stands inside a data token, `after` behind one, `before` in front of one.

    The last two are for tokens at the edge of a text, where templates look with startswith and endswith.
    """

    cut: str
    after: str
    before: str


def choose_marks(data: Collection[str]) -> Marks | None:
    """Marks that none of the texts holds; None when the texts hold too many of the candidates."""
    free = [mark for mark in _CANDIDATES if not any(mark in text for text in data)]
    return Marks(*free[:3]) if len(free) >= 3 else None


class DataMarker:
    """Marks the data of one request. `lenient` texts may stand as control in what the model itself wrote.

    `skipped` texts are left unmarked: the template looks for them in the data, and would miss them.
    """

    def __init__(
        self, control: ControlMatcher, marks: Marks, lenient: Collection[str], skipped: Collection[str] = ()
    ) -> None:
        self._control = control
        self._marks = marks
        self._lenient = lenient
        self._skipped = skipped

    def messages(self, messages: list[Json]) -> list[Json]:
        return [self._message(message) for message in messages]

    def value(self, value: Any, *, own: bool = False) -> Any:
        """All strings in `value`, keys included. `own`: the model's own text, in which markers stay control."""
        if isinstance(value, str):
            return self.text(value, own=own)
        if isinstance(value, dict):
            return {self.text(key): self.value(item, own=own) for key, item in value.items()}
        if isinstance(value, list):
            return [self.value(item, own=own) for item in value]
        return value

    def text(self, text: str, *, own: bool = False) -> str:
        marked, done = [], 0
        for position, token in self._control.spans(text):
            if token in self._skipped or (own and token in self._lenient):
                continue
            end = position + len(token)
            marked.append(text[done:position])
            if position == 0 and end < len(text):
                marked.append(token + self._marks.after)
            elif end == len(text) and position > 0:
                marked.append(self._marks.before + token)
            else:
                marked.append(token[0] + self._marks.cut + token[1:])
            done = end
        marked.append(text[done:])
        if _ends_in_prefix(text[done:], self._control.texts):
            marked.append(self._marks.cut)
        return "".join(marked)

    def _message(self, message: Json) -> Json:
        own = message["role"] == "assistant"
        result: Json = {}
        for key, value in message.items():
            if key == "role":
                result[key] = value
            else:
                result[key] = self.value(value, own=own and key in ("content", "reasoning_content"))
        return result


def _ends_in_prefix(text: str, tokens: Collection[str]) -> bool:
    """True when the end of `text` could be the beginning of a control token that the template completes."""
    tail = text[-max((len(token) for token in tokens), default=1) :]
    last = {token[0] for token in tokens}
    return any(
        character in last and any(token.startswith(tail[index:]) for token in tokens)
        for index, character in enumerate(tail)
    )


def data_texts(value: Any) -> Iterator[str]:
    """All strings (keys included) in plain data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from data_texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from data_texts(item)


def read_marks(rendered: str, marks: Marks, control: ControlMatcher) -> tuple[str, list[Span]]:
    """The text without marks, and the spans of it that are data whatever they look like."""
    pieces = re.split(f"([{marks.cut}{marks.after}{marks.before}])", rendered)
    text = "".join(pieces[::2])
    cuts: list[tuple[int, str]] = []
    length = 0
    for piece, mark in zip(pieces[::2], pieces[1::2], strict=False):
        length += len(piece)
        cuts.append((length, mark))
    longest = max((len(token) for token in control.texts), default=1)
    spans: list[Span] = []
    for position, mark in cuts:
        if mark == marks.before:
            token = control.text_at(text, position)
            spans.append((position, position + len(token or " ")))
        elif mark == marks.after:
            starts = range(max(0, position - longest), position)
            start = next((index for index in starts if text[index:position] in control.texts), position - 1)
            spans.append((max(0, start), position))
        else:
            spans.append((max(0, position - 1), position))
    return text, spans


def tokens_in(data: Collection[str], control: ControlMatcher) -> list[str]:
    """Distinct control texts that the data holds."""
    return list(dict.fromkeys(token for text in data for _, token in control.spans(text)))


def spans_by_search(text: str, data: Collection[str], control: ControlMatcher, tokens: Collection[str]) -> list[Span]:
    """For `tokens` that could not be marked: their places in `text` that read as they do in the data.

    A place counts when the data has the same characters on one side of the token.
    """
    before: set[tuple[str, str]] = set()
    after: set[tuple[str, str]] = set()
    for item in data:
        for position, token in control.spans(item):
            if token in tokens:
                end = position + len(token)
                before.add((token, item[max(0, position - _CONTEXT) : position]))
                after.add((token, item[end : end + _CONTEXT]))
    spans = []
    for position, token in control.spans(text):
        end = position + len(token)
        sides = [text[max(0, position - width) : position] for width in range(1, _CONTEXT + 1)]
        rights = [text[end : end + width] for width in range(1, _CONTEXT + 1)]
        if any((token, side) in before for side in sides) or any((token, side) in after for side in rights):
            spans.append((position, end))
        elif (token, "") in before and (token, "") in after:
            spans.append((position, end))
    return spans
