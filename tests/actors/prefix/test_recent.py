"""A client that changes the head of its prompt is told where; new conversations are not complained about."""

import numpy as np

from neuron.actors.prefix.recent import Difference, RecentPrompts

RANDOM = np.random.default_rng(0)
TEXT = RANDOM.integers(0, 30_000, 2000).astype("<i4")


def test_a_changed_head_is_found() -> None:
    recent = RecentPrompts()
    assert recent.compare(TEXT, 0) is None
    other = TEXT.copy()
    other[57] += 1
    assert recent.compare(other, 0) == Difference(57, 2000, int(TEXT[57]), int(other[57]))


def test_a_head_of_another_length_is_found() -> None:
    recent = RecentPrompts()
    recent.compare(TEXT, 0)
    other = np.concatenate([TEXT[:40], TEXT[43:], TEXT[:100]])
    found = recent.compare(other, 0)
    assert found is not None
    assert found.position == 40


def test_other_conversations_short_prompts_and_good_reuse_are_not_worth_a_word() -> None:
    recent = RecentPrompts()
    recent.compare(TEXT, 0)
    assert recent.compare(RANDOM.integers(0, 30_000, 2000).astype("<i4"), 0) is None
    assert recent.compare(TEXT[1:400], 0) is None
    assert recent.compare(np.concatenate([TEXT, TEXT[:50]]), 1990) is None
