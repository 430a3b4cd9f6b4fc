"""preprocessor_config.json in the spellings it comes in, and what does not fit the tower."""

import json
from pathlib import Path
from typing import Any

import pytest

from neuron.actors.errors import InvalidConfig
from neuron.actors.images.processor import ImageProcessor, family_processor, read_processor
from neuron.kernels.formats.model_config import VisionConfig

VISION = VisionConfig(
    depth=1,
    hidden_size=32,
    intermediate_size=64,
    num_heads=2,
    patch_size=16,
    temporal_patch_size=2,
    spatial_merge_size=2,
    num_position_embeddings=16,
    out_hidden_size=32,
)


def read(tmp_path: Path, content: Any, name: str = "preprocessor_config.json") -> ImageProcessor:
    (tmp_path / name).write_text(json.dumps(content))
    return read_processor(tmp_path, VISION, "a/b")


def test_no_file_means_the_family_s(tmp_path: Path) -> None:
    assert read_processor(tmp_path, VISION, "a/b") == family_processor()


@pytest.mark.parametrize(
    "content",
    [
        {"size": {"shortest_edge": 4096, "longest_edge": 65536}},
        {"min_pixels": 4096, "max_pixels": 65536},
        {"min_pixels": 4096, "max_pixels": 65536, "size": {"shortest_edge": 1, "longest_edge": 2}},
    ],
)
def test_spellings_of_the_bounds(tmp_path: Path, content: Any) -> None:
    processor = read(tmp_path, content)
    assert (processor.min_pixels, processor.max_pixels) == (4096, 65536)


def test_nested_in_a_processor_config(tmp_path: Path) -> None:
    content = {"image_processor": {"image_mean": [0.1, 0.2, 0.3], "image_std": [1, 2, 3], "rescale_factor": 0.5}}
    processor = read(tmp_path, content, "processor_config.json")
    assert (processor.mean, processor.std, processor.rescale) == ((0.1, 0.2, 0.3), (1.0, 2.0, 3.0), 0.5)


def test_the_cap_of_a_megapixel(tmp_path: Path) -> None:
    assert read(tmp_path, {"size": {"shortest_edge": 65536, "longest_edge": 16777216}}).max_pixels == 1 << 20
    assert read(tmp_path, {"min_pixels": 1 << 22, "max_pixels": 1 << 24}).min_pixels == 1 << 20
    assert read(tmp_path, {"max_pixels": 5}).max_pixels == 32 * 32


@pytest.mark.parametrize(
    "content",
    [
        {"patch_size": 14},
        {"merge_size": 4},
        {"temporal_patch_size": 1},
        {"patch_size": "16"},
        {"min_pixels": -1},
        {"max_pixels": 0},
        {"image_mean": [0.5, 0.5]},
        {"image_std": [0.5, 0.5, 0]},
        {"image_std": "abc"},
        {"rescale_factor": None},
        {"rescale_factor": True},
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(InvalidConfig) as caught:
        read(tmp_path, content)
    assert caught.value.status == 422
