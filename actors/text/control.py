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

#: Texts that end a turn or the text in some family; such a token stops generation whatever the metadata says.
END_TEXTS = frozenset(
    {
        "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<end_of_turn>", "<|end_of_text|>",
        "<|eot|>", "<|EOT|>", "<EOT>", "_<EOT>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<|return|>", "<|call|>",
        "<turn|>", "<end_of_utterance>", "<|END_OF_TURN_TOKEN|>",
    }
)  # fmt: skip


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


def end_tokens(added: Iterable[AddedToken]) -> frozenset[int]:
    """Ids of special tokens that are known to end a turn."""
    texts = {token.text: token.id for token in added if token.special}
    known = {index for text, index in texts.items() if text in END_TEXTS}
    if "<|return|>" in texts:
        known.discard(texts.get("<|end|>", -1))  # there it ends a message within the turn
    return frozenset(known)


class Match(msgspec.Struct, frozen=True):
    """`start` and `end` include blanks taken by lstrip and rstrip."""

    start: int
    end: int
    token_id: int


#: Longer texts are never recognised (real ones have at most some tens of characters).
_LONGEST_TEXT = 256
#: Characters searched at a time: one search keeps the interpreter until it ends.
_WINDOW = 64 << 10


class ControlMatcher:
    """Finds control-token texts: leftmost first, the longest of those that start there."""

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        self._tokens: Mapping[str, AddedToken] = {
            token.text: token for token in tokens if 0 < len(token.text) <= _LONGEST_TEXT
        }
        self._longest = max(map(len, self._tokens), default=0)
        self._pattern = re.compile(_alternatives(list(self._tokens))) if self._tokens else None

    def __bool__(self) -> bool:
        return bool(self._tokens)

    @property
    def texts(self) -> Collection[str]:
        return self._tokens.keys()

    def text_at(self, text: str, position: int) -> str | None:
        """The longest control text that starts at `position`."""
        found = self._pattern.match(text, position) if self._pattern else None
        return found.group() if found else None

    def spans(self, text: str, start: int = 0, end: int | None = None) -> Iterator[tuple[int, str]]:
        """Position and text of each occurrence in `text[start:end]`, not overlapping."""
        if self._pattern is None:
            return
        limit = len(text) if end is None else end
        position = start
        while position < limit:
            stop = min(limit, position + _WINDOW)
            found = self._pattern.search(text, position, min(limit, stop + self._longest))
            if found is None or found.start() >= stop:
                position = stop
                continue
            yield found.start(), found.group()
            position = found.end()

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


def _alternatives(texts: list[str]) -> str:
    """A pattern for any of `texts`, the longest first, with common beginnings written once."""
    groups: dict[str, list[str]] = {}
    for text in texts:
        groups.setdefault(text[:1], []).append(text[1:])
    branches = []
    for first, rests in groups.items():
        if first:
            branches.append(re.escape(first) + (_alternatives(rests) if rests != [""] else ""))
    body = branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})" if branches else ""
    return f"(?:{body})?" if "" in groups and branches else body
