"""Which towers are accepted: names and shapes against the config, before weights are read."""

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from neuron.kernels.formats.errors import FormatError, FormatKind
from neuron.kernels.formats.hf_config import parse_config
from neuron.kernels.formats.model_config import ModelConfig, VisionConfig
from neuron.kernels.formats.vision_tensors import check_vision, tower_tensors, vision_prefix
from tests.kernels.formats.models import HYBRID as DOCUMENT

HYBRID = parse_config(json.dumps(DOCUMENT).encode())
VISION = VisionConfig(
    depth=2,
    hidden_size=32,
    intermediate_size=48,
    num_heads=2,
    patch_size=4,
    temporal_patch_size=2,
    spatial_merge_size=2,
    num_position_embeddings=49,
    out_hidden_size=HYBRID.hidden_size,
)
SEEING: ModelConfig = msgspec.structs.replace(HYBRID, vision=VISION, image_token_id=3)


def tensors(prefix: str = "model.visual.", **changes: Any) -> dict[str, Any]:
    shapes = {prefix + name: shape for name, shape in tower_tensors(VISION).items()} | {"model.norm.weight": (4,)}
    shapes |= {prefix + name: shape for name, shape in changes.items()}
    return {name: SimpleNamespace(shape=shape) for name, shape in shapes.items() if shape is not None}


@pytest.mark.parametrize("prefix", ["model.visual.", "visual."])
def test_a_whole_tower(prefix: str) -> None:
    assert check_vision(SEEING, tensors(prefix)) == prefix
    assert len(tower_tensors(VISION)) == 9 + 2 * 12


def test_text_alone() -> None:
    text = {"model.norm.weight": SimpleNamespace(shape=(4,))}
    assert vision_prefix(text) is None
    assert check_vision(SEEING, text) is None
    assert check_vision(msgspec.structs.replace(SEEING, vision=None), tensors()) is None


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"pos_embed.weight": None}, FormatKind.CORRUPT_WEIGHTS),
        ({"blocks.1.attn.qkv.weight": (32, 96)}, FormatKind.CORRUPT_WEIGHTS),
        ({"patch_embed.proj.weight": (32, 3, 4, 4)}, FormatKind.CORRUPT_WEIGHTS),
        ({"deepstack_merger_list.0.norm.weight": (32,)}, FormatKind.UNSUPPORTED_MODEL),
        ({"blocks.2.norm1.weight": (32,)}, FormatKind.UNSUPPORTED_MODEL),
    ],
)
def test_tensors_that_do_not_fit(change: dict[str, Any], kind: FormatKind) -> None:
    with pytest.raises(FormatError) as caught:
        check_vision(SEEING, tensors(**change))
    assert caught.value.kind is kind
    assert next(iter(change)) in caught.value.message


@pytest.mark.parametrize(
    "change",
    [
        {"num_position_embeddings": 50},
        {"num_heads": 3},
        {"out_hidden_size": HYBRID.hidden_size + 1},
    ],
)
def test_configs_that_do_not_fit(change: dict[str, int]) -> None:
    wrong = msgspec.structs.replace(SEEING, vision=msgspec.structs.replace(VISION, **change))
    with pytest.raises(FormatError) as caught:
        check_vision(wrong, tensors())
    assert caught.value.kind is FormatKind.INVALID_CONFIG


@pytest.mark.parametrize("token", [None, HYBRID.vocab_size])
def test_a_placeholder_of_the_vocabulary_is_needed(token: int | None) -> None:
    with pytest.raises(FormatError, match="image_token_id"):
        check_vision(msgspec.structs.replace(SEEING, image_token_id=token), tensors())
