"""Cost of constrained decoding for one token, by size of the vocabulary: python -m ops.bench.constraint.

A synthetic byte-level vocabulary (every byte, then random words) follows a long JSON answer; the figures are
microseconds for computing and applying the mask and for committing the token, and milliseconds to build. Once without
a limit on its tokens, once with one that leaves little to spare.
"""

import json
import random
import sys
import time
from collections.abc import Sequence

import numpy as np

from neuron.actors.request import InferenceRequest, ResponseFormat
from neuron.actors.text.constraint import build_constraint
from neuron.actors.text.tokenizer import SegmentTokenizer
from neuron.actors.text.types import Markers

SIZES = (150_000, 248_000)
LETTERS = "etaoinshrdlucmfwypvbgkjqxz"
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "count": {"type": "integer"},
        "rows": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
    },
    "required": ["title", "count", "rows"],
}
ANSWER = {"title": "some words " * 40, "count": 12, "rows": [{"name": f"row number {index}"} for index in range(40)]}


class Side:
    reasoning: Markers | None = None
    tool_call: Markers | None = None

    def __init__(self, size: int) -> None:
        chance = random.Random(0)
        words = {bytes([value]) for value in range(256)}
        while len(words) < size - 1:
            word = "".join(chance.choices(LETTERS, k=chance.randint(2, 9)))
            words.add(chance.choice(("", " ", '"', "\n")).encode() + word.encode())
        pieces = [*sorted(words), b"<end>"]
        ids = {piece: index for index, piece in enumerate(pieces)}
        self.tokenizer = SegmentTokenizer(
            encode_plain=lambda text, _begins: [ids[bytes([value])] for value in text.encode()],
            token_bytes=pieces,
            added=(),
            control=(),
            eos_ids=frozenset({size - 1}),
        )
        self.ids = ids

    def greedy(self, text: bytes) -> list[int]:
        out, position = [], 0
        while position < len(text):
            width = next(width for width in range(10, 0, -1) if text[position : position + width] in self.ids)
            out.append(self.ids[text[position : position + width]])
            position += width
        return out


def measure(size: int, spare: int | None) -> dict[str, float]:
    """`spare`: tokens that the limit leaves beyond the answer; None for no limit."""
    side = Side(size)
    tokens = side.greedy(json.dumps(ANSWER).encode())
    limit = None if spare is None else len(tokens) + spare
    request = InferenceRequest(
        req_id="", model="", messages=(), principal="", response_format=ResponseFormat("json_schema", SCHEMA)
    )
    begin = time.perf_counter()
    constraint = build_constraint(side, request, opens_reasoning=False, max_new_tokens=limit)
    first = time.perf_counter() - begin
    begin = time.perf_counter()
    constraint = build_constraint(side, request, opens_reasoning=False, max_new_tokens=limit)
    again = time.perf_counter() - begin
    assert constraint is not None
    steps = []
    for token in tokens:
        row = np.zeros(size, np.float32)
        row[token] = 20.0
        begin = time.perf_counter()
        constraint.apply(row)
        constraint.commit(token)
        steps.append(time.perf_counter() - begin)
    values: Sequence[float] = np.quantile(steps, (0.5, 0.99)).tolist()
    figures = {"vocabulary": size, "tokens": len(steps), "first_build_ms": first * 1e3, "build_ms": again * 1e3}
    return figures | {"median_us": values[0] * 1e6, "p99_us": values[1] * 1e6, "mean_us": float(np.mean(steps)) * 1e6}


def main() -> None:
    for size in SIZES:
        for spare in (None, 20):
            figures = {"spare": spare, **{key: round(value, 1) for key, value in measure(size, spare).items()}}
            sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
