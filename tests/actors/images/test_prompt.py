"""Places of images in a prompt, their rotary positions, and what a prefix with images is recognised by."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5Model

from neuron.actors.errors import TemplateError
from neuron.actors.images.decoder import PromptImage
from neuron.actors.images.prompt import expand, rope_positions
from tests.actors.images.files import PROCESSOR

PAD = 7


def image(rows: int, columns: int, digest: int = 1) -> PromptImage:
    patches = np.zeros((rows * columns, 768), np.uint8)
    return PromptImage(patches, (1, rows, columns), rows * columns // 4, bytes([digest]) * 16)


def published_positions(ids: list[int], grids: list[tuple[int, int, int]]) -> tuple[Any, int]:
    """transformers' own get_rope_index, with as much of a model as it needs."""
    model: Any = SimpleNamespace(config=SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2)))
    model.get_vision_position_ids = lambda *a, **k: Qwen3_5Model.get_vision_position_ids(model, *a, **k)
    tokens = torch.tensor([ids])
    positions, delta = Qwen3_5Model.get_rope_index(
        model, tokens, (tokens == PAD).int(), image_grid_thw=torch.tensor(grids)
    )
    return positions[:, 0].numpy(), int(delta)


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ([1, 2, PAD, 3], [(4, 6)]),
        ([PAD], [(2, 2)]),
        ([1, PAD, 2, 3, PAD, 4, 5, 6], [(2, 20), (16, 4)]),
        ([1, PAD, 2, PAD, 3, PAD], [(6, 6), (2, 2), (4, 10)]),
    ],
)
def test_positions_are_the_published_ones(text: list[int], shapes: list[tuple[int, int]]) -> None:
    images = [image(*shape) for shape in shapes]
    prompt, placed = expand(text, PAD, images, PROCESSOR)
    wanted, delta = published_positions(prompt, [one.grid for one in images])
    assert np.array_equal(placed.positions, wanted)
    assert placed.rope_delta(len(prompt)) == delta
    assert prompt.count(PAD) == sum(one.tokens for one in images)
    for place in placed.places:
        assert set(prompt[place.offset : place.offset + place.image.tokens]) == {PAD}


def test_text_alone_counts_on() -> None:
    assert np.array_equal(rope_positions(5, [], merge=2), np.tile(np.arange(5), (3, 1)))


@pytest.mark.parametrize("text", [[1, 2], [1, PAD, PAD], [PAD, 1, PAD, 2, PAD]])
def test_a_template_that_loses_or_adds_a_place_is_an_error(text: list[int]) -> None:
    with pytest.raises(TemplateError, match="places for"):
        expand(text, PAD, [image(2, 2)] if text[-1:] != [2] else [image(2, 2)] * 2, PROCESSOR)


def test_prompts_are_told_apart_by_their_images() -> None:
    text = [1, PAD, 2]
    prompt, one = expand(text, PAD, [image(4, 4, digest=1)], PROCESSOR)
    _, same = expand(text, PAD, [image(4, 4, digest=1)], PROCESSOR)
    _, other = expand(text, PAD, [image(4, 4, digest=2)], PROCESSOR)
    assert np.array_equal(one.identity(prompt), same.identity(prompt))
    differs = one.identity(prompt) != other.identity(prompt)
    assert differs.tolist() == [False, True, True, True, True, False]
    assert (one.identity(prompt)[1:5] < 0).all()
    assert prompt == [1, PAD, PAD, PAD, PAD, 2]
