"""The XML call form: `<function=NAME>` with `<parameter=KEY>` values. Used by tool_calls.

The form has no escape, so a tag counts only where the grammar can stand it: a close tag followed by anything but
the next tag of the grammar belongs to the value before it.
"""

import re
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from neuron.actors.text.tool_calls_typing import properties_of, typed_value

#: The longest tag, names included.
MAX_TAG = 300
#: Blank characters after a bare `</function>` that may still be followed by a stray close tag.
MAX_BLANK = 1024
_NAMED = re.compile(r"<(function|parameter)=([^<>\n]{1,256})>")


class TagKind(Enum):
    FUNCTION = auto()
    PARAMETER = auto()
    PARAMETER_END = auto()
    FUNCTION_END = auto()
    CALL_END = auto()
    CALL = auto()


_FIXED = {
    "</parameter>": TagKind.PARAMETER_END,
    "</function>": TagKind.FUNCTION_END,
}


@dataclass(frozen=True, slots=True)
class _Parameter:
    """Where a value's opening tag ends; `start` is where that tag begins."""

    key: str
    start: int
    value_start: int


@dataclass(slots=True)
class _Function:
    name: str
    parameters: list[_Parameter] = field(default_factory=list)
    #: Position of the last `</parameter>` of each parameter: (start, end), or None.
    closes: list[tuple[int, int] | None] = field(default_factory=list)
    end: int = -1
    #: Text stood where only a parameter may.
    broken: bool = False


@dataclass(slots=True)
class XmlScanner:
    """`feed` gives None while the block goes on, else the text behind it. Linear in the text.

    `wrapped`: a `<tool_call>` tag came before, so `</tool_call>` ends the block; otherwise `</function>` does.
    """

    schemas: dict[str, dict[str, Any]]
    wrapped: bool
    #: Open and close text of a call.
    tags: tuple[str, str]
    #: The last function was closed properly and only blank text followed.
    complete: bool = False
    _raw: list[str] = field(default_factory=list)
    _length: int = 0
    _tag: str = ""
    _last: TagKind | None = None
    _gap: bool = False
    _firm: bool = False
    _blank: str = ""  # bare form: blank text behind </function>
    _functions: list[_Function] = field(default_factory=list)
    _last_char: str = "\n"

    def feed(self, text: str) -> str | None:
        position = 0
        while position < len(text):
            if not self._tag:
                found = text.find("<", position)
                end = len(text) if found < 0 else found
                if end > position and self._plain(text[position:end]):
                    return self._leave(text[position:])
                if found >= 0:
                    self._tag = "<"
                position = end + (found >= 0)
                continue
            position, ended = self._in_tag(text, position)
            if ended is not None:
                return ended + text[position:]
        return None

    def parse(self) -> list[tuple[str, dict[str, Any]]] | None:
        """The calls of a block that ended; None where it does not parse."""
        raw = "".join(self._raw)
        calls = []
        for function in self._functions:
            if function.broken:
                return None
            end = function.end if function.end >= 0 else len(raw)
            calls.append((function.name, self._arguments(raw, function, end)))
        return calls or None

    # -- scanning

    def _plain(self, text: str) -> bool:
        """Text between tags; True when it ends the block: behind a bare call, or where only a parameter may stand."""
        if self._bare_end():
            if not text.isspace() or len(self._blank) + len(text) > MAX_BLANK:
                return True
            self._blank += text
            return False
        if not text.isspace():
            if self._last is TagKind.FUNCTION:
                self._functions[-1].broken = True
                return True
            self._gap = True
            self.complete = False
        self._append(text)
        return False

    def _bare_end(self) -> bool:
        return not self.wrapped and self._last is TagKind.FUNCTION_END and self._firm and not self._gap

    def _leave(self, rest: str) -> str:
        blank, self._blank = self._blank, ""
        return blank + rest

    def _append(self, text: str) -> None:
        self._raw.append(text)
        self._length += len(text)
        self._last_char = text[-1]

    def _in_tag(self, text: str, position: int) -> tuple[int, str | None]:
        """Go on with a tag up to its `>`; an early `<` or too great a length makes what was read plain text."""
        limit = position + MAX_TAG - len(self._tag)
        close = text.find(">", position, limit)
        stop = text.find("<", position, close if close >= 0 else limit)
        if stop >= 0:
            self._tag += text[position:stop]
            return self._literal(stop)
        if close >= 0:
            tag = self._tag + text[position : close + 1]
            self._tag = ""
            return close + 1, self._on_tag(tag)
        end = min(len(text), limit)
        self._tag += text[position:end]
        if len(self._tag) >= MAX_TAG:
            return self._literal(end)
        return end, None

    def _literal(self, position: int) -> tuple[int, str | None]:
        tag, self._tag = self._tag, ""
        return position, self._leave(tag) if self._plain(tag) else None

    def _on_tag(self, tag: str) -> str | None:
        """A whole tag: the text to give back where the block ended before it, "" where it ended with it."""
        kind, name = _FIXED.get(tag), ""
        if tag in self.tags:
            kind = TagKind.CALL if tag == self.tags[0] else TagKind.CALL_END
        elif kind is None:
            named = _NAMED.fullmatch(tag)
            if named is not None:
                kind = TagKind.FUNCTION if named[1] == "function" else TagKind.PARAMETER
                name = _name(named[2])
        if self._bare_end():
            if kind is TagKind.CALL_END:
                self._blank = ""
                return ""
            return self._leave(tag)
        match kind:
            case TagKind.CALL_END if self._may_end():
                return ""
            case TagKind.CALL if self.complete:
                return tag
            case TagKind.FUNCTION if name and (not self._functions or self.complete):
                self._functions.append(_Function(name))
                self._accept(kind, tag)
            case TagKind.PARAMETER if name and self._opens_parameter(name):
                function = self._functions[-1]
                function.parameters.append(_Parameter(name, self._length, self._length + len(tag)))
                function.closes.append(None)
                self._accept(kind, tag)
            case TagKind.PARAMETER_END if self._functions and self._functions[-1].parameters:
                self._functions[-1].closes[-1] = (self._length, self._length + len(tag))
                self._accept(kind, tag)
            case TagKind.FUNCTION_END if self._functions:
                self._end_function(tag)
            case _ if self._plain(tag):
                return self._leave(tag)
        return None

    def _accept(self, kind: TagKind, tag: str) -> None:
        self._last, self._gap, self.complete = kind, False, False
        self._append(tag)

    def _end_function(self, tag: str) -> None:
        firm = not self._gap and self._last in (TagKind.PARAMETER_END, TagKind.FUNCTION)
        self._functions[-1].end = self._length
        self._accept(TagKind.FUNCTION_END, tag)
        self._firm = self.complete = firm

    def _may_end(self) -> bool:
        if not self._functions:
            return True
        ends = (TagKind.FUNCTION_END, TagKind.PARAMETER_END, TagKind.FUNCTION)
        return not self._gap and self._last in ends

    def _opens_parameter(self, key: str) -> bool:
        """Behind the header or a close tag; also on a new line of a value nobody closed, if the tool has such a key."""
        if not self._functions or self.complete:
            return False
        if not self._gap and self._last in (TagKind.FUNCTION, TagKind.PARAMETER_END):
            return True
        function = self._functions[-1]
        if not function.parameters or function.closes[-1] is not None or self._last_char != "\n":
            return False
        known, _ = properties_of(self.schemas.get(function.name))
        return not known or (key in known and all(parameter.key != key for parameter in function.parameters))

    # -- values

    def _arguments(self, raw: str, function: _Function, end: int) -> dict[str, Any]:
        root = self.schemas.get(function.name)
        known, others = properties_of(root)
        arguments: dict[str, Any] = {}
        for index, (parameter, close) in enumerate(zip(function.parameters, function.closes, strict=True)):
            following = function.parameters[index + 1].start if index + 1 < len(function.parameters) else end
            stop = following
            if close is not None and not raw[close[1] : following].strip():
                stop = close[0]
            value = _between_lines(raw[parameter.value_start : stop])
            arguments[parameter.key] = typed_value(value, known.get(parameter.key, others), root)
        return arguments


def _between_lines(value: str) -> str:
    """Without the one line break on each side that belongs to the form: of the kind that the form begins with."""
    line_break = "\r\n" if value.startswith("\r\n") else "\n"
    return value.removeprefix(line_break).removesuffix(line_break)


def _name(text: str) -> str:
    """`text` without blanks around it, and without quotes, which some models write as in HTML."""
    name = text.strip()
    return name[1:-1] if len(name) > 2 and name[0] == name[-1] and name[0] in "\"'" else name
