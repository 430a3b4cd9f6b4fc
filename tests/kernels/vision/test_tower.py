"""The tower against transformers in float32, and mutations that must be noticed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

from neuron.kernels.formats.hf_config import parse_config
from neuron.kernels.formats.safetensors import SafetensorsSet
from neuron.kernels.formats.vision_tensors import check_vision
from neuron.kernels.threads import Team
from neuron.kernels.vision import tower as tower_module
from neuron.kernels.vision.positions import block_order, rotary, table_taps
from neuron.kernels.vision.tower import VisionTower
from neuron.kernels.vision.weights import load_tower_weights
from neuron.kernels.weights.reader import SafetensorsReader
from tests.kernels.vision.tiny import PATCH, SCALE, patches_of, picture, tiny_vision, tower_reference

#: Grids of different aspect ratios: smaller and larger than the table of 7 x 7, one cell, long and thin.
TOLERANCE = 2e-5
GRIDS = [(2, 2), (6, 10), (14, 4), (2, 16), (8, 8)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vision")


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Any:
    return tiny_vision(folder)


def read_tower(folder: Path, dtype: torch.dtype = torch.float32) -> VisionTower:
    config = parse_config((folder / "config.json").read_bytes())
    opened = SafetensorsSet.open(tuple(folder.glob("*.safetensors")))
    prefix = check_vision(config, opened.tensors)
    assert prefix == "model.visual."
    assert config.vision is not None
    team = Team(1)
    try:
        weights = load_tower_weights(config.vision, SafetensorsReader(opened, team), prefix, dtype, lambda done: None)
    finally:
        team.close()
    return VisionTower(config.vision, weights)


@pytest.mark.parametrize("grid", GRIDS)
def test_equal_to_transformers(oracle: Any, folder: Path, grid: tuple[int, int]) -> None:
    pixels = picture(*grid, seed=grid[0])
    found = read_tower(folder).encode(patches_of(pixels), (1, *grid), SCALE)
    assert found.shape == (grid[0] * grid[1] // 4, 48)
    assert np.abs(found - tower_reference(oracle, pixels)).max() < TOLERANCE


def test_bfloat16_stays_near(oracle: Any, folder: Path) -> None:
    pixels = picture(8, 12)
    found = read_tower(folder, torch.bfloat16).encode(patches_of(pixels), (1, 8, 12), SCALE)
    wanted = tower_reference(oracle, pixels)
    cosine = (found * wanted).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(wanted, axis=1)
    assert cosine.min() > 0.99


@pytest.mark.parametrize("mutation", ["no table", "no rotary", "raster order", "exact gelu", "scale"])
def test_a_mutation_is_noticed(oracle: Any, folder: Path, mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels, scale = picture(6, 10), SCALE
    wanted = tower_reference(oracle, pixels)
    tower = read_tower(folder)
    if mutation == "no table":
        monkeypatch.setattr(
            tower_module, "table_taps", lambda *_: (np.zeros((60, 4), np.int64), np.zeros((60, 4), np.float32))
        )
    elif mutation == "no rotary":
        monkeypatch.setattr(tower_module, "rotary", lambda rows, columns, dim: rotary(rows * 0, columns * 0, dim))
    elif mutation == "raster order":
        monkeypatch.setattr(tower_module, "block_order", lambda height, width, merge: block_order(height, width, 1))
    elif mutation == "exact gelu":
        gelu = torch.nn.functional.gelu
        monkeypatch.setattr(torch.nn.functional, "gelu", lambda x, approximate="none": gelu(x))
    else:
        scale = type(SCALE)(SCALE.rescale, SCALE.std, SCALE.mean)
    found = tower.encode(patches_of(pixels), (1, 6, 10), scale)
    assert np.abs(found - wanted).max() > TOLERANCE


@pytest.mark.parametrize("grid", [(2, 2), (4, 30), (48, 48), (96, 18)])
def test_positions_equal_the_published_ones(grid: tuple[int, int]) -> None:
    shape = torch.tensor([[1, *grid]])
    rows, columns = block_order(*grid, 2)
    places = get_vision_position_ids(shape, 2)
    assert np.array_equal(np.stack([rows, columns], 1), places.numpy())
    taps, weights = table_taps(rows, columns, *grid, 48)
    wanted = get_vision_interpolation_indices_and_weights(shape, 48, "bilinear", True, 2)
    dense = [
        torch.zeros(len(rows), 48 * 48).scatter_add_(1, t, w)
        for t, w in ((torch.from_numpy(taps), torch.from_numpy(weights)), wanted)
    ]
    assert (dense[0] - dense[1]).abs().max() < 1e-5


def test_what_does_not_fit_is_refused(oracle: Any, folder: Path) -> None:
    tower = read_tower(folder)
    whole = patches_of(picture(4, 4))
    for patches, grid in (
        (whole, (1, 4, 6)),
        (whole[:-1], (1, 4, 4)),
        (whole[:, :-1], (1, 4, 4)),
        (whole, (2, 4, 2)),
        (whole, (1, 0, 4)),
        (whole[:9], (1, 3, 3)),
    ):
        with pytest.raises(ValueError, match="grid"):
            tower.encode(patches, grid, SCALE)
    assert tower.row_bytes == 3 * PATCH * PATCH
