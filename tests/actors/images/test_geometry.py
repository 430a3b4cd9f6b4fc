"""smart_resize: parity with the published rule, and the cases where that breaks its own budget."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as published

from neuron.actors.images.geometry import AspectTooExtreme, smart_resize

SIDES = st.integers(1, 5000)


@given(height=SIDES, width=SIDES, budget=st.sampled_from([(65536, 1 << 20), (9216, 16384), (1024, 16384), (1, 1024)]))
def test_equal_to_the_published_rule_wherever_that_keeps_the_budget(
    height: int, width: int, budget: tuple[int, int]
) -> None:
    least, most = budget
    if max(height, width) > 200 * min(height, width):
        with pytest.raises(AspectTooExtreme):
            smart_resize(height, width, factor=32, min_pixels=least, max_pixels=most)
        return
    rows, columns = smart_resize(height, width, factor=32, min_pixels=least, max_pixels=most)
    assert rows % 32 == 0
    assert columns % 32 == 0
    assert 1024 <= rows * columns <= most
    theirs = published(height, width, 32, least, most)
    if 0 < math.prod(theirs) <= most:
        assert (rows, columns) == theirs


def test_a_side_that_would_vanish_stays_one_cell_and_the_budget_holds() -> None:
    assert smart_resize(31, 639, factor=32, min_pixels=1024, max_pixels=16384) == (32, 512)
    assert smart_resize(639, 31, factor=32, min_pixels=1024, max_pixels=16384) == (512, 32)
    rows, columns = smart_resize(690, 15420, factor=32, min_pixels=65536, max_pixels=1 << 20)
    assert rows >= 32
    assert rows * columns <= 1 << 20


@pytest.mark.parametrize(("height", "width"), [(201, 1), (1, 201), (1, 2000), (2000, 1)])
def test_beyond_the_bound_of_the_aspect_ratio(height: int, width: int) -> None:
    with pytest.raises(AspectTooExtreme):
        smart_resize(height, width, factor=32, min_pixels=65536, max_pixels=1 << 20)


def test_at_the_bound_of_the_aspect_ratio() -> None:
    assert smart_resize(1, 200, factor=32, min_pixels=1024, max_pixels=1 << 20) == (32, 480)
