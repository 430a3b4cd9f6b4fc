"""Whole calls that ended a stretch of reasoning: executed if the answer ends there, else only thought about."""

from dataclasses import dataclass, field

from neuron.actors.text.parser_channels import MAX_BLANK
from neuron.actors.text.tool_calls import ParsedCall


@dataclass(slots=True)
class TrailingCalls:
    """The calls and their text as written, blank text between them included. Used by the output parser only."""

    _calls: list[ParsedCall] = field(default_factory=list)
    _text: list[str] = field(default_factory=list)
    _blank: str = ""

    def add(self, text: str, calls: list[ParsedCall]) -> None:
        self._text += (self._blank, text)
        self._blank = ""
        self._calls.extend(calls)

    def blank(self, text: str) -> bool:
        """Take blank text behind the calls; False when it is too long or not blank, then nothing was taken."""
        if not text.isspace() or len(self._blank) + len(text) > MAX_BLANK:
            return False
        self._blank += text
        return True

    def take_text(self) -> str:
        text = "".join(self._text) + self._blank
        self._clear()
        return text

    def take_calls(self) -> list[ParsedCall]:
        calls = list(self._calls)
        self._clear()
        return calls

    def _clear(self) -> None:
        self._calls.clear()
        self._text.clear()
        self._blank = ""
