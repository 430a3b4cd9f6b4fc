"""Bytes that a token's text in a vocabulary stands for."""

from functools import cache

_BLANK = "\u2581"


@cache
def _byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level vocabularies: printable Latin-1 as it is, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(value): value for value in printable}
    others = [value for value in range(256) if value not in set(printable)]
    alphabet.update({chr(0x100 + offset): value for offset, value in enumerate(others)})
    return alphabet


def byte_level_piece(text: str) -> bytes:
    """Bytes of a byte-level piece; a text outside that alphabet stands for itself."""
    alphabet = _byte_alphabet()
    try:
        return bytes([alphabet[character] for character in text])
    except KeyError:
        return text.encode()


def sentencepiece_piece(text: str, *, is_byte: bool) -> bytes:
    """Bytes of a SentencePiece piece: U+2581 is a blank, `<0xNN>` one byte."""
    if is_byte and len(text) == 6 and text.startswith("<0x"):
        try:
            return bytes([int(text[3:5], 16)])
        except ValueError:
            return text.encode()
    return text.replace(_BLANK, " ").encode()
