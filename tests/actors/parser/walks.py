"""A small byte-level model text side, and random walks under a constraint."""

import random
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from neuron.actors.text.constraint import Constraint
from neuron.actors.text.markers import REASONING_PAIRS, TOOL_CALL_PAIRS, find_markers
from neuron.actors.text.scripted_tokenizer import scripted_tokenizer
from neuron.actors.text.tokenizer import SegmentTokenizer
from neuron.actors.text.types import Markers, Segment
from tests.harness.scripts import script, turn

NAMED = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
#: Characters a walk likes, so that strings, numbers and lists come to an end.
FAVOURED = {'"': 6.0, "}": 5.0, "]": 5.0, "<": 3.0, "\n": 2.0}
#: No walk would write this by chance; tried now and then where it is allowed.
VALUE_END = "\n</parameter>\n"


@dataclass
class TextSide:
    tokenizer: SegmentTokenizer
    reasoning: Markers | None
    tool_call: Markers | None


def text_side(piece: str = "x", *, thinks: bool = True) -> TextSide:
    named = NAMED if thinks else NAMED[2:]
    tokenizer = scripted_tokenizer(script(turn(piece), added_tokens=named, special_tokens=["<|im_end|>"]))
    return TextSide(tokenizer, find_markers(tokenizer, REASONING_PAIRS), find_markers(tokenizer, TOOL_CALL_PAIRS))


def ids(side: TextSide, text: str) -> list[int]:
    return side.tokenizer.encode([Segment(text, control=True)])


def allowed(side: TextSide, constraint: Constraint) -> np.ndarray:
    row = np.zeros(side.tokenizer.vocab_size + 5, np.float32)
    constraint.apply(row)
    assert not np.isfinite(row[side.tokenizer.vocab_size :]).any() or not constraint.active
    return np.flatnonzero(np.isfinite(row[: side.tokenizer.vocab_size]))


def accepts(side: TextSide, constraint: Constraint, tokens: Iterable[int]) -> int:
    """How many of the tokens the masks allow, one after the other."""
    count = 0
    for token in tokens:
        if token not in allowed(side, constraint):
            break
        constraint.commit(token)
        count += 1
    return count


def walk(side: TextSide, constraint: Constraint, seed: int, *, limit: int = 4000) -> list[int]:
    """Random allowed tokens up to an end token (not included)."""
    chance = random.Random(seed)
    eos = min(side.tokenizer.eos_ids)
    bonus = {side.tokenizer.encode([Segment(char, False)])[0]: weight for char, weight in FAVOURED.items()}
    taken: list[int] = []
    planned: list[int] = []
    for _ in range(limit):
        choices = allowed(side, constraint).tolist()
        assert choices, "nothing is allowed"
        if eos in choices and (len(choices) == 1 or chance.random() < 0.5):
            assert constraint.accepting
            return taken
        printable = [c for c in choices if 32 <= c < 127 or c in bonus or c > 255]
        pool = [c for c in printable or choices if c != eos] or choices
        token = chance.choices(pool, [bonus.get(c, 0.0) * len(pool) / 8 + 1.0 for c in pool])[0]
        if not planned and chance.random() < 0.1:
            planned = ids(side, VALUE_END)
        if planned and planned[0] in choices:
            token = planned.pop(0)
        else:
            planned = []
        constraint.commit(token)
        taken.append(token)
    raise AssertionError("the walk did not end")
