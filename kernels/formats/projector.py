"""Projector: a vision tower in a GGUF file of its own (llama.cpp's `mmproj`), beside a text model's GGUF.

Only the tower of this family is known (`qwen3vl_merger` without deep stacking); names are those of the `gguf` package.
"""

import re
from collections.abc import Mapping

import msgspec

from neuron.kernels.formats.errors import FormatError, FormatKind, shown
from neuron.kernels.formats.expected import HasShape, Shape
from neuron.kernels.formats.fields import MAX_HEADS, MAX_HIDDEN, MAX_INTERMEDIATE, MAX_LAYERS, Fields
from neuron.kernels.formats.gguf_config import GgufSource
from neuron.kernels.formats.gguf_header import Metadata
from neuron.kernels.formats.model_config import ModelConfig, VisionConfig
from neuron.kernels.formats.vision_tensors import CHANNELS, check_tower_shape, tower_tensors

WHERE = "mmproj metadata"
PREFIX = "visual."
"""Before the names that a tower's tensors have for the loader, which are those of safetensors files."""
PATCH = "patch_embed.proj.weight"
PATCH_FRAMES = ("v.patch_embd.weight", "v.patch_embd.weight.1")
"""The two frames that a still image fills alike: the file has a tensor of each."""
_MERGER = "qwen3vl_merger"
_PAD_TOKEN = "<|image_pad|>"
_MAX_SIDE, _MAX_POSITIONS, _MAX_PIXELS = 256, 1 << 20, 1 << 31
_FIXED = {
    "patch_embed.proj.bias": "v.patch_embd.bias",
    "pos_embed.weight": "v.position_embd.weight",
    "merger.norm": "v.post_ln",
    "merger.linear_fc1": "mm.0",
    "merger.linear_fc2": "mm.2",
}
_BLOCK = {
    "norm1": "ln1",
    "norm2": "ln2",
    "attn.qkv": "attn_qkv",
    "attn.proj": "attn_out",
    "mlp.linear_fc1": "ffn_up",
    "mlp.linear_fc2": "ffn_down",
}


class Projector(msgspec.Struct, frozen=True, kw_only=True):
    """`mean` and `std` are of channel values 0 to 1; bounds of an image's area in pixels, where the file names them."""

    vision: VisionConfig
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None


def read_projector(source: GgufSource) -> Projector:
    """What an mmproj file describes, its tensors checked against it.

    Raises FormatError: unsupported_model (another kind of projector), invalid_gguf, corrupt_weights.
    """
    general = Fields(source.metadata, WHERE, FormatKind.INVALID_GGUF)
    kind = general.text("clip.projector_type", general.text("clip.vision.projector_type", ""))
    if general.text("general.architecture") != "clip" or kind != _MERGER:
        raise _unsupported(f"Projectors of the kind {shown(kind)} are not supported.")
    fields = Fields(source.metadata, WHERE, FormatKind.INVALID_GGUF, prefix="clip.vision.")
    stacked = source.metadata.get("clip.vision.is_deepstack_layers", [])
    if isinstance(stacked, list) and any(stacked):
        raise _unsupported("Projectors with deep stacking are not supported.")
    positions = source.tensors.get(_FIXED["pos_embed.weight"])
    vision = VisionConfig(
        depth=fields.integer("block_count", 1, MAX_LAYERS),
        hidden_size=fields.integer("embedding_length", 1, MAX_HIDDEN),
        intermediate_size=fields.integer("feed_forward_length", 1, MAX_INTERMEDIATE),
        num_heads=fields.integer("attention.head_count", 1, MAX_HEADS),
        patch_size=fields.integer("patch_size", 1, _MAX_SIDE),
        temporal_patch_size=len(PATCH_FRAMES),
        spatial_merge_size=fields.integer("spatial_merge_size", 1, _MAX_SIDE, 2),
        num_position_embeddings=positions.shape[0] if positions is not None else 1,
        out_hidden_size=fields.integer("projection_dim", 1, MAX_HIDDEN),
    )
    if not 0 < vision.num_position_embeddings <= _MAX_POSITIONS:
        raise _corrupt("The vision tower has too many position embeddings.")
    _check_tensors(vision, source.tensors)
    return Projector(
        vision=vision,
        mean=_channels(source.metadata, "clip.vision.image_mean"),
        std=_channels(source.metadata, "clip.vision.image_std"),
        min_pixels=fields.integer("image_min_pixels", 1, _MAX_PIXELS) if fields.has("image_min_pixels") else None,
        max_pixels=fields.integer("image_max_pixels", 1, _MAX_PIXELS) if fields.has("image_max_pixels") else None,
    )


def seeing(config: ModelConfig, metadata: Metadata, projector: Projector) -> ModelConfig:
    """The text model of `metadata` with the tower. Raises FormatError where the two do not belong together."""
    pad = image_token(config, metadata)
    if pad is None:
        raise _unsupported("The text model beside the projector takes no images.")
    seen = msgspec.structs.replace(config, vision=projector.vision, image_token_id=pad)
    check_tower_shape(seen, projector.vision)
    return seen


def image_token(config: ModelConfig, metadata: Metadata) -> int | None:
    """The id that stands where an image belongs; None for a text model that has no place for images."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    if config.rope.mrope_section is None or not isinstance(tokens, list) or _PAD_TOKEN not in tokens:
        return None
    return next(index for index, token in enumerate(tokens) if token == _PAD_TOKEN)


def stored_name(name: str) -> str:
    """Where the file has the tensor that the loader calls `name` (without prefix).

    >>> stored_name("blocks.3.attn.qkv.bias")
    'v.blk.3.attn_qkv.bias'
    """
    if name in _FIXED:
        return _FIXED[name]
    stem, _, kind = name.rpartition(".")
    if stem in _FIXED:
        return f"{_FIXED[stem]}.{kind}"
    block = re.fullmatch(r"blocks\.(\d+)\.(.+)", stem)
    if block is None or block[2] not in _BLOCK:
        raise KeyError(name)
    return f"v.blk.{block[1]}.{_BLOCK[block[2]]}.{kind}"


def stored_tensors(vision: VisionConfig) -> dict[str, Shape]:
    """Name in the file -> shape."""
    found: dict[str, Shape] = {}
    for name, shape in tower_tensors(vision).items():
        if name == PATCH:
            found |= dict.fromkeys(PATCH_FRAMES, (vision.hidden_size, CHANNELS, vision.patch_size, vision.patch_size))
        else:
            found[stored_name(name)] = shape
    return found


def _check_tensors(vision: VisionConfig, tensors: Mapping[str, HasShape]) -> None:
    expected = stored_tensors(vision)
    for name, shape in expected.items():
        tensor = tensors.get(name)
        if tensor is None:
            raise _corrupt(f"Tensor {name} of the projector is missing; the download may be incomplete.")
        if tensor.shape != shape:
            raise _corrupt(f"Tensor {name} is {list(tensor.shape)}, and {list(shape)} by the projector's metadata.")
    for name in tensors:
        if name not in expected:
            raise _unsupported(f"Tensor {shown(name)} of the projector is not known.")


def _channels(metadata: Metadata, key: str) -> tuple[float, float, float] | None:
    values = metadata.get(key)
    if values is None:
        return None
    if not isinstance(values, list) or len(values) != CHANNELS or not all(isinstance(value, float) for value in values):
        raise FormatError(FormatKind.INVALID_GGUF, f"{WHERE}: {key} is not three numbers.")
    red, green, blue = (float(value) for value in values)
    return red, green, blue


def _unsupported(message: str) -> FormatError:
    return FormatError(FormatKind.UNSUPPORTED_MODEL, message)


def _corrupt(message: str) -> FormatError:
    return FormatError(FormatKind.CORRUPT_WEIGHTS, message)
