"""Stop strings over a stream of content text: exact cut, only a proper prefix of a stop string is withheld."""

import re
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Pattern:
    """One stop string with its Knuth-Morris-Pratt failure table; `matched` characters of it are matched now."""

    text: str
    failure: list[int]
    matched: int = 0

    def step(self, char: str) -> bool:
        """Advance by one character; True when the whole string has just been seen."""
        matched = self.matched
        while matched and self.text[matched] != char:
            matched = self.failure[matched - 1]
        if self.text[matched] == char:
            matched += 1
        self.matched = matched
        return matched == len(self.text)


def _failure_table(text: str) -> list[int]:
    table = [0] * len(text)
    length = 0
    for index in range(1, len(text)):
        while length and text[index] != text[length]:
            length = table[length - 1]
        if text[index] == text[length]:
            length += 1
        table[index] = length
    return table


@dataclass(slots=True)
class StopFilter:
    """Linear in the text for any stop strings. The string that is complete first wins; of two, the longer.

    `matched` is the stop string once one was seen; after that every `push` gives "".
    """

    _patterns: list[_Pattern] = field(default_factory=list)
    _first: re.Pattern[str] | None = None
    _held: str = ""
    matched: str | None = None

    @classmethod
    def of(cls, stops: tuple[str, ...]) -> "StopFilter":
        wanted = sorted({stop for stop in stops if stop}, key=len, reverse=True)
        if not wanted:
            return cls()
        first = "[" + "".join(re.escape(char) for char in sorted({stop[0] for stop in wanted})) + "]"
        return cls([_Pattern(stop, _failure_table(stop)) for stop in wanted], re.compile(first))

    def push(self, text: str) -> str:
        """The text that is certain to be content now; the rest is held."""
        if self._first is None:
            return text
        if self.matched is not None:
            return ""
        buffer = self._held + text
        position = len(self._held)
        held = position
        while position < len(buffer):
            if held == 0:
                found = self._first.search(buffer, position)
                if found is None:
                    position = len(buffer)
                    break
                position = found.start()
            char = buffer[position]
            position += 1
            for pattern in self._patterns:
                if pattern.step(char):
                    self.matched = pattern.text
                    self._held = ""
                    return buffer[: position - len(pattern.text)]
            held = max(pattern.matched for pattern in self._patterns)
        cut = len(buffer) - held
        self._held = buffer[cut:]
        return buffer[:cut]

    def release(self) -> str:
        """What was held, when the text ends here (the end of the answer, or a tool call, or reasoning begins)."""
        held, self._held = self._held, ""
        for pattern in self._patterns:
            pattern.matched = 0
        return held
