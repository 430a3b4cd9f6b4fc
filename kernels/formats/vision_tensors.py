"""Which tensors a vision tower has in safetensors files, checked before any weight is read. Beside `expected`."""

from collections.abc import Iterable, Mapping

from neuron.kernels.formats.errors import FormatError, FormatKind, shown
from neuron.kernels.formats.expected import HasShape, Shape
from neuron.kernels.formats.model_config import ModelConfig, VisionConfig

PREFIXES = ("model.visual.", "visual.")
"""Where published checkpoints put the tower."""
CHANNELS = 3


def vision_prefix(names: Iterable[str]) -> str | None:
    """The prefix under which tensors of a tower are found; None when there are none."""
    for name in names:
        for prefix in PREFIXES:
            if name.startswith(prefix):
                return prefix
    return None


def check_vision(config: ModelConfig, tensors: Mapping[str, HasShape]) -> str | None:
    """The tower's prefix; None for a model that sees nothing: no vision_config, or files of its text side alone.

    Raises FormatError: corrupt_weights (missing, misshapen or left over, naming the tensor), unsupported_model.
    """
    vision, prefix = config.vision, vision_prefix(tensors)
    if vision is None or prefix is None:
        return None
    check_tower_shape(config, vision)
    expected = {prefix + name: shape for name, shape in tower_tensors(vision).items()}
    for name, shape in expected.items():
        tensor = tensors.get(name)
        if tensor is None:
            raise _corrupt(f"Tensor {name} is missing; the download may be incomplete.")
        if tensor.shape != shape:
            raise _corrupt(f"Tensor {name} is {list(tensor.shape)}, and {list(shape)} by the model's config.")
    for name in tensors:
        if name.startswith(prefix) and name not in expected:
            raise FormatError(FormatKind.UNSUPPORTED_MODEL, f"Tensor {shown(name)} of the vision tower is not known.")
    return prefix


def check_tower_shape(config: ModelConfig, vision: VisionConfig) -> None:
    """Raises FormatError (invalid_model_config) for a tower that cannot be, or not beside this text model."""
    side = int(vision.num_position_embeddings**0.5)
    if side * side != vision.num_position_embeddings:
        raise FormatError(FormatKind.INVALID_CONFIG, "num_position_embeddings of the vision tower is no square.")
    if vision.hidden_size % (4 * vision.num_heads):
        raise FormatError(FormatKind.INVALID_CONFIG, "The vision tower's heads cannot be rotated on two axes.")
    if vision.out_hidden_size != config.hidden_size:
        raise FormatError(FormatKind.INVALID_CONFIG, "The vision tower's output is not as wide as the text model.")
    if config.image_token_id is None or config.image_token_id >= config.vocab_size:
        raise FormatError(FormatKind.INVALID_CONFIG, "A vision model needs its image_token_id.")


def tower_tensors(vision: VisionConfig) -> dict[str, Shape]:
    """Name (without prefix) -> shape."""
    hidden, inner = vision.hidden_size, vision.intermediate_size
    patch = (vision.temporal_patch_size, vision.patch_size, vision.patch_size)
    merged = hidden * vision.spatial_merge_size**2
    names: dict[str, Shape] = {
        "patch_embed.proj.weight": (hidden, CHANNELS, *patch),
        "patch_embed.proj.bias": (hidden,),
        "pos_embed.weight": (vision.num_position_embeddings, hidden),
        "merger.norm.weight": (hidden,),
        "merger.norm.bias": (hidden,),
        "merger.linear_fc1.weight": (merged, merged),
        "merger.linear_fc1.bias": (merged,),
        "merger.linear_fc2.weight": (vision.out_hidden_size, merged),
        "merger.linear_fc2.bias": (vision.out_hidden_size,),
    }
    block: dict[str, Shape] = {
        "norm1.weight": (hidden,),
        "norm1.bias": (hidden,),
        "norm2.weight": (hidden,),
        "norm2.bias": (hidden,),
        "attn.qkv.weight": (3 * hidden, hidden),
        "attn.qkv.bias": (3 * hidden,),
        "attn.proj.weight": (hidden, hidden),
        "attn.proj.bias": (hidden,),
        "mlp.linear_fc1.weight": (inner, hidden),
        "mlp.linear_fc1.bias": (inner,),
        "mlp.linear_fc2.weight": (hidden, inner),
        "mlp.linear_fc2.bias": (hidden,),
    }
    for layer in range(vision.depth):
        names |= {f"blocks.{layer}.{name}": shape for name, shape in block.items()}
    return names


def _corrupt(message: str) -> FormatError:
    return FormatError(FormatKind.CORRUPT_WEIGHTS, message)
