"""Finds the first of a few literal tags in a stream of text; used by the output parser only."""

import re
from dataclasses import dataclass, field


@dataclass(slots=True)
class TagFinder:
    """Every tag begins with `<` and has no other `<`: only a tail from the last `<` can still become one."""

    tags: tuple[str, ...] = ()
    _pattern: re.Pattern[str] | None = None
    _longest: int = 0
    _held: str = field(default="")

    def __post_init__(self) -> None:
        self.tags = tuple(tag for tag in self.tags if tag.rfind("<") == 0)
        if self.tags:
            self._pattern = re.compile("|".join(re.escape(tag) for tag in self.tags))
            self._longest = max(map(len, self.tags))

    def push(self, text: str) -> tuple[str, str | None, str]:
        """(text before, tag or None, rest). Without a tag the rest is "" and an ambiguous tail is held."""
        if self._pattern is None:
            return text, None, ""
        buffer = self._held + text
        self._held = ""
        found = self._pattern.search(buffer)
        if found is not None:
            return buffer[: found.start()], found.group(), buffer[found.end() :]
        start = buffer.rfind("<", max(0, len(buffer) - self._longest))
        if start >= 0:
            tail = buffer[start:]
            if any(tag.startswith(tail) for tag in self.tags):
                self._held = tail
                return buffer[:start], None, ""
        return buffer, None, ""

    def release(self) -> str:
        held, self._held = self._held, ""
        return held
