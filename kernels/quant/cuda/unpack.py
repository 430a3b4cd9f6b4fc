"""Device functions that read 16 weights of a GGML block: a unit, the work of one thread at a time.

Block layouts: ggml's ggml-common.h, as the `gguf` package reads them. Rows are seen as words (int32 where a block is
a multiple of four bytes, else int16) and as float16 for the scales. A unit is `16 / run` runs of `run` neighbours,
`stride` apart: what shares its bytes in a block.
"""
# mypy: allow-untyped-defs, allow-untyped-decorators

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from neuron.kernels.cuda import byte_of, device, small
from neuron.kernels.formats.ggml_types import GgmlType

#: Weights in a unit.
UNIT = 16
#: Masks an index that is never negative, so that the compiler knows it too and does without the wrap of Python's lists.
NOT_NEGATIVE = 0x7FFFFFFF
_NIBBLES, _PAIRS, _ONES, _SIGNS = 0x0F0F0F0F, 0x03030303, 0x01010101, 0x80808080


@dataclass(frozen=True, slots=True)
class Layout:
    """`unpack(words, halves, row, unit, weights)` fills float32 weights [16] of a unit of a row."""

    kind: GgmlType
    run: int
    stride: int
    unpack: Callable[..., None]

    @property
    def wide(self) -> bool:
        """Words are int32, not int16."""
        return _is_wide(self.kind)

    @property
    def apart(self) -> int:
        """Units whose runs lie side by side, before the next such group of units begins."""
        return max(self.stride // self.run, 1)

    @property
    def region(self) -> int:
        """Columns of such a group."""
        return self.apart * UNIT


@cache
def layout(kind: GgmlType) -> Layout:
    """Raises KeyError for types that are not stored in blocks."""
    run, stride, make = _MAKERS[kind]
    return Layout(kind, run, stride, device(make(kind.type_size, _word(_is_wide(kind)))))


def _is_wide(kind: GgmlType) -> bool:
    return kind.type_size % 4 == 0


def _word(wide: bool) -> Any:
    if wide:

        def word(words, row, byte):
            """The four bytes at a multiple of four."""
            return int(words[row, byte >> 2])
    else:

        def word(words, row, byte):
            """The four bytes at a multiple of two."""
            return (int(words[row, byte >> 1]) & 0xFFFF) | (int(words[row, (byte >> 1) + 1]) << 16)

    return device(word)


@device
def _fill(weights, first, word, scale, offset):
    """Four weights of the bytes of a word. Without a loop: an array that one indexes would live in memory."""
    weights[first] = scale * byte_of(word, 0) + offset
    weights[first + 1] = scale * byte_of(word, 1) + offset
    weights[first + 2] = scale * byte_of(word, 2) + offset
    weights[first + 3] = scale * byte_of(word, 3) + offset


@device
def _spread(bits, first):
    """Bits first..first+3 of `bits` as 16 or 0 in the four bytes of a word."""
    word = 0
    for i in range(4):
        word |= ((bits >> (first + i)) & 1) << (8 * i + 4)
    return word


def _plain_nibbles(size: int, word: Any, *, fifth: bool, least: bool) -> Callable[..., None]:
    """Q4_0, Q4_1, Q5_0, Q5_1: scale, minimum, fifth bits (32), nibbles (low: weights 0-15, high: 16-31)."""
    head = 4 if least else 2
    middle = np.float32(16.0 if fifth else 8.0)
    nibbles = head + (4 if fifth else 0)

    @device
    def eight(words, row, place, bits, half, weights, scale, offset):
        """Four neighbours of the first sixteen weights of a block, and the four sixteen columns on."""
        packed = word(words, row, place + 4 * half)
        low, high = packed & _NIBBLES, (packed >> 4) & _NIBBLES
        if fifth:
            low |= _spread(bits, 4 * half)
            high |= _spread(bits, 16 + 4 * half)
        _fill(weights, 4 * half, low, scale, offset)
        _fill(weights, 8 + 4 * half, high, scale, offset)

    def unpack(words, halves, row, unit, weights):
        block, part = (unit >> 1) * size, unit & 1
        scale = np.float32(halves[row, block >> 1])
        if least:
            offset = np.float32(halves[row, (block >> 1) + 1])
        else:
            offset = -middle * scale
        bits = 0
        if fifth:
            bits = word(words, row, block + head) >> (8 * part)
        place = block + nibbles + 8 * part
        eight(words, row, place, bits, 0, weights, scale, offset)
        eight(words, row, place, bits, 1, weights, scale, offset)

    return unpack


def _q4_0(size: int, word: Any) -> Callable[..., None]:
    return _plain_nibbles(size, word, fifth=False, least=False)


def _q4_1(size: int, word: Any) -> Callable[..., None]:
    return _plain_nibbles(size, word, fifth=False, least=True)


def _q5_0(size: int, word: Any) -> Callable[..., None]:
    return _plain_nibbles(size, word, fifth=True, least=False)


def _q5_1(size: int, word: Any) -> Callable[..., None]:
    return _plain_nibbles(size, word, fifth=True, least=True)


def _q8_0(size: int, word: Any) -> Callable[..., None]:
    def unpack(words, halves, row, unit, weights):
        block, part = (unit >> 1) * size, unit & 1
        scale = np.float32(halves[row, block >> 1])
        offset, place = np.float32(-128.0) * scale, block + 2 + 16 * part
        _fill(weights, 0, word(words, row, place) ^ _SIGNS, scale, offset)
        _fill(weights, 4, word(words, row, place + 4) ^ _SIGNS, scale, offset)
        _fill(weights, 8, word(words, row, place + 8) ^ _SIGNS, scale, offset)
        _fill(weights, 12, word(words, row, place + 12) ^ _SIGNS, scale, offset)

    return unpack


def _q2_k(size: int, word: Any) -> Callable[..., None]:
    def unpack(words, halves, row, unit, weights):
        block, half, quad = (unit >> 4) * size, (unit >> 3) & 1, unit & 7
        scale, least = np.float32(halves[row, (block >> 1) + 40]), np.float32(halves[row, (block >> 1) + 41])
        packed = word(words, row, block + 16 + 32 * half + 4 * quad)
        first, second = word(words, row, block + 8 * half), word(words, row, block + 8 * half + 4)
        for shift in range(4):
            both = (first if shift < 2 else second) >> (8 * (2 * (shift & 1) + (quad >> 2)))
            factor, offset = scale * small(both & 15), -least * small((both >> 4) & 15)
            _fill(weights, 4 * shift, (packed >> (2 * shift)) & _PAIRS, factor, offset)

    return unpack


def _q3_k(size: int, word: Any) -> Callable[..., None]:
    def unpack(words, halves, row, unit, weights):
        block, half, quad = (unit >> 4) * size, (unit >> 3) & 1, unit & 7
        scale = np.float32(halves[row, (block >> 1) + 54])
        packed, top = word(words, row, block + 32 + 32 * half + 4 * quad), word(words, row, block + 4 * quad)
        first, second = word(words, row, block + 96), word(words, row, block + 100)
        highs = word(words, row, block + 104)
        for shift in range(4):
            place = 8 * (2 * (shift & 1) + (quad >> 2))
            low = ((first if shift < 2 else second) >> (place + 4 * half)) & 15
            high = (highs >> (place + 4 * half + 2 * (shift >> 1))) & 3
            factor = scale * (small(low | (high << 4)) - np.float32(32.0))
            # A cleared bit of the mask takes 4 away.
            values = ((packed >> (2 * shift)) & _PAIRS) | (((top >> (4 * half + shift)) & _ONES) << 2)
            _fill(weights, 4 * shift, values, factor, np.float32(-4.0) * factor)

    return unpack


def _four_or_five(size: int, word: Any, *, fifth: bool) -> Callable[..., None]:
    """Q4_K, Q5_K: scale, minimum, 8 pairs of 6 bits, fifth bits, nibbles (of each 64 weights: low 32, high 32)."""
    nibbles = 48 if fifth else 16

    @device
    def eight(words, row, block, unit, side, factor, offset, weights):
        """Eight neighbours among the 32 low (side 0) or high nibbles of 64 weights."""
        pair, part = (unit >> 2) & 3, unit & 3
        place = block + nibbles + 32 * pair + 8 * part
        first = (word(words, row, place) >> (4 * side)) & _NIBBLES
        second = (word(words, row, place + 4) >> (4 * side)) & _NIBBLES
        if fifth:
            place, group = block + 16 + 8 * part, 2 * pair + side
            first |= ((word(words, row, place) >> group) & _ONES) << 4
            second |= ((word(words, row, place + 4) >> group) & _ONES) << 4
        _fill(weights, 8 * side, first, factor, offset)
        _fill(weights, 8 * side + 4, second, factor, offset)

    def unpack(words, halves, row, unit, weights):
        block, pair = (unit >> 4) * size, (unit >> 2) & 3
        scale, least = np.float32(halves[row, block >> 1]), np.float32(halves[row, (block >> 1) + 1])
        first, second = word(words, row, block + 4), word(words, row, block + 8)
        # Groups 0-3 have their six bits together; those of 4-7 are a nibble of the third word and the top two bits of
        # the bytes of groups 0-3.
        nibble, least_nibble = first, second
        if pair >= 2:
            nibble = word(words, row, block + 12)
            least_nibble = nibble >> 4
        place = 16 * (pair & 1)
        top = place + 4 + 2 * (pair >> 1)
        factor = scale * small(((nibble >> place) & 15) | (((first >> top) & 3) << 4))
        offset = -least * small(((least_nibble >> place) & 15) | (((second >> top) & 3) << 4))
        eight(words, row, block, unit, 0, factor, offset, weights)
        place, top = place + 8, top + 8
        factor = scale * small(((nibble >> place) & 15) | (((first >> top) & 3) << 4))
        offset = -least * small(((least_nibble >> place) & 15) | (((second >> top) & 3) << 4))
        eight(words, row, block, unit, 1, factor, offset, weights)

    return unpack


def _q4_k(size: int, word: Any) -> Callable[..., None]:
    return _four_or_five(size, word, fifth=False)


def _q5_k(size: int, word: Any) -> Callable[..., None]:
    return _four_or_five(size, word, fifth=True)


def _q6_k(size: int, word: Any) -> Callable[..., None]:
    def unpack(words, halves, row, unit, weights):
        block, half, quad = (unit >> 4) * size, (unit >> 3) & 1, unit & 7
        scale = np.float32(halves[row, (block >> 1) + 104])
        even = word(words, row, block + 64 * half + 4 * quad)
        odd = word(words, row, block + 64 * half + 32 + 4 * quad)
        top = word(words, row, block + 128 + 32 * half + 4 * quad)
        first, second = word(words, row, block + 192 + 8 * half), word(words, row, block + 196 + 8 * half)
        for quarter in range(4):
            packed = (even if quarter & 1 == 0 else odd) >> (4 * (quarter >> 1))
            values = (packed & _NIBBLES) | (((top >> (2 * quarter)) & _PAIRS) << 4)
            signed = (first if quarter < 2 else second) >> (8 * (2 * (quarter & 1) + (quad >> 2)))
            factor = scale * (small((signed & 255) ^ 128) - np.float32(128.0))
            _fill(weights, 4 * quarter, values, factor, np.float32(-32.0) * factor)

    return unpack


_Maker = Callable[[int, Any], Callable[..., None]]
#: run, stride, maker.
_MAKERS: dict[GgmlType, tuple[int, int, _Maker]] = {
    GgmlType.Q4_0: (8, 16, _q4_0),
    GgmlType.Q4_1: (8, 16, _q4_1),
    GgmlType.Q5_0: (8, 16, _q5_0),
    GgmlType.Q5_1: (8, 16, _q5_1),
    GgmlType.Q8_0: (16, 16, _q8_0),
    GgmlType.Q2_K: (4, 32, _q2_k),
    GgmlType.Q3_K: (4, 32, _q3_k),
    GgmlType.Q4_K: (8, 32, _q4_k),
    GgmlType.Q5_K: (8, 32, _q5_k),
    GgmlType.Q6_K: (4, 32, _q6_k),
}
BLOCK_KINDS = tuple(_MAKERS)
