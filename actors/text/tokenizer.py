"""SegmentTokenizer: ids of a rendered prompt from any vocabulary; control tokens only where the template wrote them."""

import re
from collections.abc import Callable, Sequence
from enum import IntEnum

from neuron.actors.errors import InvalidValue
from neuron.actors.text.control import AddedToken, ControlMatcher
from neuron.actors.text.detokenizer import StreamDetokenizer
from neuron.actors.text.types import Segment

#: Runs of text are cut about here, between two words: the native encoder is not linear and keeps the interpreter.
_CHUNK = 32 << 10
#: Text in which no such place comes up for this long (no prose, no code) is cut anywhere.
_LONGEST = 64 << 10
#: Between two words, or at the end of a line that ends in a letter: no pre-tokenizer and no piece reaches across.
_BETWEEN_WORDS = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])|(?<=[^\W\d_])(?=\n)")


class Place(IntEnum):
    """Where a run of plain text stands: some vocabularies put a blank in front of the text, or of every such run."""

    TEXT_START = 0
    AFTER_TOKEN = 1
    INSIDE = 2


EncodePlain = Callable[[str, Place], list[int]]


class SegmentTokenizer:
    """`encode_plain` gives the ids of a run of text; it never finds control tokens in it."""

    def __init__(
        self,
        *,
        encode_plain: EncodePlain,
        token_bytes: Sequence[bytes],
        added: Sequence[AddedToken],
        control: Sequence[AddedToken],
        eos_ids: frozenset[int],
        bos_token: str = "",
        eos_token: str = "",
        silent_ids: frozenset[int] = frozenset(),
        strip_blank: bool = False,
    ) -> None:
        self.vocab_size = len(token_bytes)
        self.eos_ids = eos_ids
        self.bos_token = bos_token
        self.eos_token = eos_token
        self.control = ControlMatcher(control)
        self.special_texts = frozenset(token.text for token in control if token.special)
        self._encode_plain = encode_plain
        self._token_bytes = token_bytes
        self._added = {token.text: token.id for token in added}
        self._silent = silent_ids | frozenset(token.id for token in added if token.special)
        self._strip_blank = strip_blank
        self._pieces = [b"" if index in self._silent else piece for index, piece in enumerate(token_bytes)]
        self._leaks = ControlMatcher(token for token in control if self._leaks_as_text(token))

    def _leaks_as_text(self, token: AddedToken) -> bool:
        """True when plain encoding of the text gives the control id (the vocabulary holds it as a whole)."""
        return token.id in self._encode_plain(token.text, Place.INSIDE)

    def encode(self, segments: Sequence[Segment]) -> list[int]:
        """Ids of the joined text. A control token counts only when it lies inside one control segment."""
        text = "".join(segment.text for segment in segments)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidValue("The text holds an unpaired surrogate.", param="messages") from error
        ids: list[int] = []
        done = position = 0
        for segment in segments:
            end = position + len(segment.text)
            if segment.control:
                for match in self.control.find(text, max(position, done), end):
                    self._plain(text[done : match.start], ids, Place.AFTER_TOKEN if done else Place.TEXT_START)
                    ids.append(match.token_id)
                    done = match.end
            position = end
        self._plain(text[done:], ids, Place.AFTER_TOKEN if done else Place.TEXT_START)
        return ids

    def _plain(self, text: str, ids: list[int], place: Place) -> None:
        start = 0
        for position, token_text in self._leaks.spans(text):
            middle = position + max(1, len(token_text) // 2)
            ids.extend(self._encode_plain(text[start:middle], place))
            start, place = middle, Place.INSIDE
        while len(text) - start > _CHUNK:
            gap = _BETWEEN_WORDS.search(text, start + _CHUNK, min(len(text), start + _LONGEST))
            if gap is None and len(text) - start <= _LONGEST:
                break
            end = gap.start() if gap else start + _LONGEST
            ids.extend(self._encode_plain(text[start:end], place))
            start, place = end, Place.INSIDE
        if start < len(text):
            ids.extend(self._encode_plain(text[start:], place))

    def token_id(self, text: str) -> int | None:
        return self._added.get(text)

    def token_bytes(self, token_id: int) -> bytes:
        return self._token_bytes[token_id]

    def detokenizer(self) -> StreamDetokenizer:
        return StreamDetokenizer(self._piece, strip_blank=self._strip_blank)

    def _piece(self, token_id: int) -> bytes:
        return self._pieces[token_id] if 0 <= token_id < self.vocab_size else b""
