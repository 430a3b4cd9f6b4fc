"""One tool-call block of a model's output: where it ends, and the calls in it. Used by the output parser."""

import re
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from neuron.actors.request import Tool
from neuron.actors.text.tool_calls_typing import dump_arguments, load_json
from neuron.actors.text.tool_calls_xml import MAX_BLANK, XmlScanner

CALL_OPEN = "<tool_call>"
CALL_CLOSE = "</tool_call>"
FUNCTION_OPEN = "<function="
_STRUCTURE = re.compile(r'["{}\[\]<]')
_STRING_END = re.compile(r'["\\]')


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """`arguments` is JSON text of an object."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """The tools a request declares, by name."""

    schemas: dict[str, dict[str, Any]]

    @classmethod
    def of(cls, tools: tuple[Tool, ...]) -> "CallGrammar":
        return cls({tool.name: tool.parameters for tool in tools})

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.schemas)


class _Form(Enum):
    UNKNOWN = auto()
    JSON = auto()
    XML = auto()
    ENDED = auto()


@dataclass(slots=True)
class CallBlock:
    """Takes text after an opening tag. `feed` gives None while the block goes on, else the text behind it.

    Then `calls` holds what it said, or nothing where it did not parse: `raw()` is the block verbatim.
    """

    grammar: CallGrammar
    opening: str
    declared_only: bool
    #: The model's own texts around a call.
    tags: tuple[str, str] = (CALL_OPEN, CALL_CLOSE)
    calls: list[ParsedCall] = field(default_factory=list)
    _raw: list[str] = field(default_factory=list)
    _form: _Form = _Form.UNKNOWN
    _held: str = ""
    _json: "JsonScanner" = field(init=False)
    _xml: XmlScanner | None = None

    def __post_init__(self) -> None:
        self._json = JsonScanner(self.tags)
        if self.opening.startswith(FUNCTION_OPEN):
            self._start_xml(wrapped=False)
            self._feed_xml(self.opening)
        else:
            self._raw.append(self.opening)

    def raw(self) -> str:
        return "".join(self._raw) + self._held

    def feed(self, text: str) -> str | None:
        match self._form:
            case _Form.UNKNOWN:
                return self._feed_unknown(text)
            case _Form.JSON:
                return self._feed_json(text)
            case _Form.XML:
                return self._feed_xml(text)
            case _Form.ENDED:
                return text

    def close(self) -> bool:
        """The answer ended here by itself: True when only a closing tag was missing; `calls` is set then."""
        if self._form is _Form.JSON and self._json.complete:
            self._parse_json()
        elif self._form is _Form.XML and self._xml is not None and self._xml.complete:
            self._parse_xml()
        self._form = _Form.ENDED
        return bool(self.calls)

    def _feed_unknown(self, text: str) -> str | None:
        """Blank text, then `{` with a key or `<function=` decides the form; anything else is no call at all."""
        whole = self._held + text
        stripped = whole.lstrip()
        self._raw.append(whole[: len(whole) - len(stripped)])
        self._held = ""
        if _undecided(stripped):
            self._held = stripped
            return None
        if stripped[0] == "{" and stripped[1:].lstrip()[:1] in ('"', "}"):
            self._form = _Form.JSON
            return self._feed_json(stripped)
        if stripped.startswith(FUNCTION_OPEN):
            self._start_xml(wrapped=True)
            return self._feed_xml(stripped)
        self._form = _Form.ENDED
        return stripped

    def _feed_json(self, text: str) -> str | None:
        rest = self._json.feed(text)
        if rest is None:
            self._raw.append(text)
            return None
        self._raw.append(self._json.taken(text, rest))
        overlap = len(rest) - len(text)
        if overlap > 0:  # a tag of the next call began in an earlier piece
            self._trim(overlap)
        if self._json.complete:
            self._parse_json()
        self._form = _Form.ENDED
        return rest

    def _start_xml(self, *, wrapped: bool) -> None:
        self._form = _Form.XML
        self._xml = XmlScanner(self.grammar.schemas, wrapped=wrapped, tags=self.tags)

    def _feed_xml(self, text: str) -> str | None:
        if self._xml is None:
            return text
        rest = self._xml.feed(text)
        if rest is None:
            self._raw.append(text)
            return None
        if len(rest) <= len(text):
            self._raw.append(text[: len(text) - len(rest)])
        else:
            self._trim(len(rest) - len(text))
        self._parse_xml()
        self._form = _Form.ENDED
        return rest

    def _trim(self, count: int) -> None:
        """Take back the last `count` characters of the raw text: they belong to what follows."""
        raw = "".join(self._raw)
        self._raw = [raw[:-count]]

    def _accept(self, name: str, arguments: dict[str, Any]) -> bool:
        text = dump_arguments(arguments)
        if not name or text is None or (self.declared_only and name not in self.grammar.schemas):
            return False
        self.calls.append(ParsedCall(name, text))
        return True

    def _parse_json(self) -> None:
        raw = "".join(self._raw)
        start = raw.find("{", len(self.opening))
        value = load_json(raw[start : start + self._json.length])
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return
        arguments = value.get("arguments", value.get("parameters"))
        if isinstance(arguments, str):
            arguments = load_json(arguments) if arguments.strip() else None
            if arguments is None and value.get("arguments", "").strip():
                return
        if arguments is None:
            arguments = {}
        if isinstance(arguments, dict):
            self._accept(value["name"], arguments)

    def _parse_xml(self) -> None:
        parsed = self._xml.parse() if self._xml is not None else None
        for name, arguments in parsed or ():
            if not self._accept(name, arguments):
                self.calls.clear()
                return


def _undecided(text: str) -> bool:
    """The text behind an opening tag does not show yet whether it is a call."""
    if text.startswith("{"):
        return len(text) <= MAX_BLANK and not text[1:].strip()
    return len(text) < len(FUNCTION_OPEN) and FUNCTION_OPEN.startswith(text)


@dataclass(slots=True)
class JsonScanner:
    """Finds the end of the JSON object and of its block. Tags inside a string belong to the string. Linear."""

    tags: tuple[str, str]
    #: The object is whole and only blank text followed it.
    complete: bool = False
    #: Characters of the object.
    length: int = 0
    _depth: int = 0
    _string: bool = False
    _escaped: bool = False
    _closed: bool = False
    _tag: str = ""

    def feed(self, text: str) -> str | None:
        position = 0
        while position < len(text):
            if self._tag:
                position, rest = self._in_tag(text, position)
                if rest is not None:
                    return rest
            elif self._closed:
                position = self._behind(text, position)
            else:
                position = self._inside(text, position)
        return None

    @staticmethod
    def taken(text: str, rest: str) -> str:
        return text[: len(text) - len(rest)] if len(rest) <= len(text) else ""

    def _inside(self, text: str, position: int) -> int:
        start = position
        if self._string:
            if self._escaped:
                self._escaped = False
                position += 1
            else:
                found = _STRING_END.search(text, position)
                position = len(text) if found is None else found.end()
                if found is not None:
                    self._escaped = found.group() == "\\"
                    self._string = self._escaped
        else:
            found = _STRUCTURE.search(text, position)
            position = len(text) if found is None else found.end()
            if found is not None:
                self._structure(found.group())
        self.length += position - start
        return position

    def _structure(self, char: str) -> None:
        if char == '"':
            self._string = True
        elif char in "{[":
            self._depth += 1
        elif char == "<":
            self._tag = "<"
        else:
            self._depth -= 1
            if self._depth <= 0:
                self._closed = self.complete = True

    def _behind(self, text: str, position: int) -> int:
        found = text.find("<", position)
        end = len(text) if found < 0 else found
        if text[position:end].strip():
            self.complete = False
        if found >= 0:
            self._tag = "<"
            return end + 1
        return end

    def _in_tag(self, text: str, position: int) -> tuple[int, str | None]:
        """Match the close tag, or, behind a whole object, the next call's opening tag."""
        opening, closing = self.tags
        tag = self._tag + text[position]
        if tag == closing:
            return position + 1, text[position + 1 :]
        if tag == opening and self._closed and self.complete:
            return position + 1, tag + text[position + 1 :]
        if closing.startswith(tag) or opening.startswith(tag):
            self._tag = tag
            if not self._closed:
                self.length += 1
            return position + 1, None
        self._tag = ""
        if self._closed:
            self.complete = False
        return position, None
