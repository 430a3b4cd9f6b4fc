"""Which added tokens are control tokens, and where their texts stand in a string."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

#: Names of blocks that chat formats delimit with tags; `<name>` and `</name>` as added tokens are control tokens.
_BLOCK_NAMES = frozenset(
    """think thought thinking reasoning tool_call tool_calls tool_response tool_responses tool_result tool_results
    tools tool function functions function_call function_calls functioncall answer image video audio system user
    assistant observation begin_of_box end_of_box s unk pad bos eos mask cls sep start_of_turn end_of_turn
    start_of_image end_of_image start_function_call end_function_call""".split()
)
_CONTROL_SHAPE = re.compile(
    r"<[|\uff5c][^<>]*>|<[^<>]*[|\uff5c]>|\[/?[A-Z][A-Z0-9_]*\]|<\|?/?[A-Za-z_]+[-_:][A-Za-z0-9_:-]*\|?>|<</?SYS>>"
)
_TAG = re.compile(r"<[/|]{0,2}([A-Za-z_:]+)\|?>")


class AddedToken(msgspec.Struct, frozen=True):
    """An added token. `lstrip`/`rstrip`: it takes the blanks on that side with it when it is recognised."""

    id: int
    text: str
    special: bool
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


def is_control(token: AddedToken, template_texts: Collection[str] = ()) -> bool:
    """True for tokens that only a template (or the model) may write.

    These are tokens flagged special, those shaped like chat markup, and those that a chat template spells out.
    Ordinary additions (runs of blanks, HTML tags, words) are recognised in any text.
    """
    if token.special or _CONTROL_SHAPE.fullmatch(token.text):
        return True
    tag = _TAG.fullmatch(token.text)
    if tag and tag.group(1).lower() in _BLOCK_NAMES:
        return True
    visible = token.text.strip()
    return len(visible) > 2 and not visible.isalnum() and any(token.text in text for text in template_texts)


class Match(msgspec.Struct, frozen=True):
    """`start` and `end` include blanks taken by lstrip and rstrip."""

    start: int
    end: int
    token_id: int


class ControlMatcher:
    """Finds control-token texts: leftmost first, the longest of those that start there."""

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        self._tokens: Mapping[str, AddedToken] = {token.text: token for token in tokens if token.text}
        self._lengths = sorted({len(text) for text in self._tokens}, reverse=True)
        first = "".join(sorted({re.escape(text[0]) for text in self._tokens}))
        self._first = re.compile(f"[{first}]") if first else None

    def __bool__(self) -> bool:
        return bool(self._tokens)

    @property
    def texts(self) -> Collection[str]:
        return self._tokens.keys()

    def text_at(self, text: str, position: int) -> str | None:
        """The longest control text that starts at `position`."""
        for length in self._lengths:
            candidate = text[position : position + length]
            if candidate in self._tokens:
                return candidate
        return None

    def spans(self, text: str, start: int = 0, end: int | None = None) -> Iterator[tuple[int, str]]:
        """Position and text of each occurrence in `text[start:end]`, not overlapping."""
        if self._first is None:
            return
        limit = len(text) if end is None else end
        position = start
        while found := self._first.search(text, position, limit):
            position = found.start()
            token_text = self.text_at(text, position)
            if token_text is None or position + len(token_text) > limit:
                position += 1
                continue
            yield position, token_text
            position += len(token_text)

    def find(self, text: str, start: int, end: int) -> Iterator[Match]:
        """Occurrences that count as tokens, with the blanks that belong to them."""
        done = start
        for position, token_text in self.spans(text, start, end):
            token = self._tokens[token_text]
            left, right = position, position + len(token_text)
            if token.single_word and (_is_word(text, left - 1) or _is_word(text, right)):
                continue
            while token.lstrip and left > done and text[left - 1].isspace():
                left -= 1
            while token.rstrip and right < len(text) and text[right].isspace():
                right += 1
            left = max(left, done)
            done = right
            yield Match(left, right, token.id)


def _is_word(text: str, position: int) -> bool:
    return 0 <= position < len(text) and (text[position].isalnum() or text[position] == "_")
