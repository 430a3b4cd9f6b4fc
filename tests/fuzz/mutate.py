"""Mutations of byte strings: the driver where no coverage-guided engine is installed. Deterministic for a seed."""

import random
from collections.abc import Sequence

INTERESTING = (
    0,
    1,
    -1,
    2,
    127,
    128,
    255,
    256,
    32767,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**63 - 1,
    -(2**63),
)
MAX_BYTES = 1 << 16
WIDTHS = (1, 2, 4, 8)


class Mutator:
    """`make()` returns a corpus entry with one to six changes, now and then spliced with another or left whole."""

    def __init__(self, corpus: Sequence[bytes], tokens: Sequence[bytes] = (), seed: int = 0) -> None:
        self._rng = random.Random(seed)
        self._corpus = list(corpus)
        self._tokens = list(tokens) or [b"\0", b"\xff"]
        self._changes = (
            self._flip,
            self._set_byte,
            self._number,
            self._cut,
            self._double,
            self._insert_token,
            self._overwrite_token,
            self._truncate,
        )

    def make(self) -> bytes:
        rng = self._rng
        data = bytearray(rng.choice(self._corpus))
        if rng.random() < 0.1:
            other = rng.choice(self._corpus)
            data[rng.randint(0, len(data)) :] = other[rng.randint(0, len(other)) :]
        for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4, 6))):
            if data:
                rng.choice(self._changes)(data)
        return bytes(data[:MAX_BYTES])

    def _place(self, data: bytearray) -> int:
        return self._rng.randrange(len(data))

    def _flip(self, data: bytearray) -> None:
        data[self._place(data)] ^= 1 << self._rng.randrange(8)

    def _set_byte(self, data: bytearray) -> None:
        data[self._place(data)] = self._rng.randrange(256)

    def _number(self, data: bytearray) -> None:
        width, place = self._rng.choice(WIDTHS), self._place(data)
        value = self._rng.choice(INTERESTING) + self._rng.choice((0, 0, 0, 1, -1))
        order = "little" if self._rng.random() < 0.7 else "big"
        data[place : place + width] = (value % (1 << (8 * width))).to_bytes(width, order)  # type: ignore[arg-type]

    def _cut(self, data: bytearray) -> None:
        place = self._place(data)
        del data[place : place + self._rng.choice((1, 2, 4, 8, 16, 64))]

    def _double(self, data: bytearray) -> None:
        place = self._place(data)
        piece = data[place : place + self._rng.choice((1, 4, 8, 32, 128))]
        data[place:place] = piece * self._rng.choice((1, 1, 2, 50))

    def _insert_token(self, data: bytearray) -> None:
        place = self._place(data)
        data[place:place] = self._rng.choice(self._tokens)

    def _overwrite_token(self, data: bytearray) -> None:
        place, token = self._place(data), self._rng.choice(self._tokens)
        data[place : place + len(token)] = token

    def _truncate(self, data: bytearray) -> None:
        del data[self._place(data) :]
