"""Worst cases for the parser do work in proportion to the text: calls into it and characters copied are counted."""

import sys
from types import FrameType
from typing import Any

import pytest

from neuron.actors.text import parser as parser_module
from tests.actors.parser.harness import BARE, Model, cut, run

BAIT = {
    "unclosed tag": "<tool_call",
    "open tags": "<tool_call>",
    "objects": "<tool_call>{",
    "open strings": '<tool_call>{"',
    "string and close": '<tool_call>{"</tool_call>',
    "nested": "{" * 11,
    "functions": "<function=say>",
    "parameters": "<tool_call><function=say><parameter=t>",
    "closes": "</parameter></function>",
    "angle": "<",
    "blank": " \n",
    "newlines": "\n",
    "backslashes": "\\",
    "think": "<think>",
    "calls": '<tool_call>{"name":"say"}</tool_call>',
}


def steps(text: str, model: Model, size: int, **options: Any) -> int:
    """Python calls (C calls too) that one run makes."""
    count = 0

    def count_call(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += 1

    pieces = cut(text, size)
    sys.setprofile(count_call)
    try:
        run(pieces, model, **options)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", BAIT)
@pytest.mark.parametrize("prefix", ["", "<tool_call>", '<tool_call>{"a":', "<tool_call><function=say>", "<think>\n"])
def test_steps_grow_with_the_text(name: str, prefix: str) -> None:
    bait = BAIT[name]
    small, large = (prefix + bait * (size // len(bait)) for size in (1_000, 10_000))
    for size in (7, 100_000):
        assert steps(large, BARE, size, stop=["END"]) < 14 * steps(small, BARE, size, stop=["END"]) + 2000


@pytest.mark.parametrize("name", BAIT)
def test_a_megabyte_ends(name: str) -> None:
    """Guarded by the suite's time limit: a quadratic parser would need hours."""
    bait = BAIT[name]
    text = bait * (1_000_000 // len(bait))
    out = run(cut(text, 61), BARE)
    assert len(out.content) + len(out.reasoning) + 40 * len(out.calls) >= len(text) - 2000


def test_whole_text_is_worked_off_in_windows() -> None:
    assert parser_module.WINDOW <= 8192
