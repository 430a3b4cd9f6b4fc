"""Incremental, UTF-8 safe detokenising: the text that became certain with each token."""

import codecs
from collections.abc import Callable


class StreamDetokenizer:
    """Joined results equal decoding all bytes at once with U+FFFD for what is not UTF-8.

    `piece` gives the bytes of one id, b"" for ids that give no text. `strip_blank`: one blank at the very
    start of the answer is dropped (decoders of SentencePiece vocabularies do).
    """

    __slots__ = ("_decoder", "_piece", "_strip")

    def __init__(self, piece: Callable[[int], bytes], *, strip_blank: bool = False) -> None:
        self._piece = piece
        self._strip = strip_blank
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        data = self._piece(token_id)
        if self._strip and data:
            self._strip = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def flush(self) -> str:
        text = self._decoder.decode(b"", True)
        self._decoder.reset()
        return text
