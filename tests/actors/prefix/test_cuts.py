"""Where prompts are cut: a cut depends on what stands before it alone."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from neuron.actors.prefix.cuts import checkpoints, cuts, grid

END = 9
ENDS = frozenset({END})
prompts = st.lists(st.sampled_from([1, 2, 3, 4, 5, END]), min_size=1, max_size=300)


def _cuts(prompt: list[int], chunk: int = 40, spacing: int = 10) -> list[int]:
    return cuts(np.asarray(prompt, "<i4"), ENDS, chunk, spacing)


@given(prompts, prompts)
def test_prompts_with_a_common_beginning_are_cut_alike_as_far_as_it_goes(prompt: list[int], rest: list[int]) -> None:
    assert [place for place in _cuts(prompt + rest) if place < len(prompt)] == _cuts(prompt)


@given(prompts, st.integers(1, 60), st.integers(0, 80))
def test_chunks_are_short_enough_and_the_last_token_is_always_computed(
    prompt: list[int], chunk: int, spacing: int
) -> None:
    places = [0, *_cuts(prompt, chunk, spacing), len(prompt)]
    lengths = np.diff(places)
    assert lengths.min() > 0
    assert lengths.max() <= chunk
    # A cut before the chunk is full follows the end of a turn, and is not too near to the one before.
    for place, length in zip(places[1:-1], lengths[:-1], strict=True):
        assert length == chunk or (prompt[place - 1] == END and length >= min(spacing, chunk))


def test_cuts_follow_turns() -> None:
    prompt = [1] * 11 + [END] + [2] * 4 + [END] + [3] * 15 + [END] + [4] * 50
    assert _cuts(prompt) == [12, 33, 73]


def test_a_grid_leaves_the_last_chunk_to_the_logits() -> None:
    assert grid(25, 10) == [10, 20]
    assert grid(20, 10) == [10]
    assert grid(5, 10) == []


def test_states_are_kept_at_the_first_and_the_last_turns_and_along_the_way() -> None:
    turn = [1] * 29 + [END]
    prompt = np.asarray(turn * 10 + [2] * 100, "<i4")
    places = cuts(prompt, ENDS, 40, 10)
    assert places == [30, 60, 90, 120, 150, 180, 210, 240, 270, 300, 340, 380]
    assert checkpoints(places, prompt, ENDS, 100) == {30, 150, 270, 300, 380}
    assert checkpoints([], prompt, ENDS, 100) == set()
