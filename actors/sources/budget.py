"""The memory that a model needs on each of its devices: one arithmetic for preflight, gates and `servable`. Pure."""

import msgspec

from neuron.actors.limits import IMAGES
from neuron.kernels.formats.model_config import ModelConfig
from neuron.kernels.formats.sharding import Sharding

#: Keys and values are kept in 16 bits, and in 32 when a load asks for float32 throughout.
KV_ELEMENT_BYTES = 2
EXACT_KV_ELEMENT_BYTES = 4
PREFILL_CHUNK_TOKENS = 512
IMAGE_PIXELS = 1 << 20
"""No image is larger once it is resized."""
_FLOAT_BYTES = 4


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes on each device at `context_length` tokens. `free_bytes` is None where no figure is known."""

    weights_bytes: int
    kv_bytes_per_token: int
    kv_bytes: int
    state_bytes: int
    workspace_bytes: int
    total_bytes: int
    free_bytes: int | None = None


def kv_bytes_per_token(config: ModelConfig, ranks: int = 1, element_bytes: int = KV_ELEMENT_BYTES) -> int:
    return Sharding(config, 0, ranks).config.kv_elements_per_token * element_bytes


def workspace_bytes(config: ModelConfig, chunk_tokens: int = PREFILL_CHUNK_TOKENS, ranks: int = 1) -> int:
    """float32 activations of one prefill chunk (residual, normed input, q/k/v or the linear mixer, gate and up), one
    row of logits, and the largest matrix of a layer expanded to 16 bits."""
    attention = (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    linear = 0
    if config.linear is not None:
        shape = config.linear
        linear = 2 * shape.key_heads * shape.key_dim + 3 * shape.value_heads * shape.value_dim
    row = 3 * config.hidden_size + (max(attention, linear) + 2 * config.intermediate_size) // ranks
    widest = max(config.intermediate_size, 2 * config.num_heads * config.head_dim, linear)
    expanded = config.hidden_size * widest // ranks * 2
    return (chunk_tokens * row + config.vocab_size) * _FLOAT_BYTES + expanded + _tower_bytes(config)


def _tower_bytes(config: ModelConfig) -> int:
    """float32 activations of the largest image in the vision tower, and the embeddings of one request's images."""
    vision = config.vision
    if vision is None:
        return 0
    patches = IMAGE_PIXELS // vision.patch_size**2
    row = 3 * vision.patch_size**2 + 8 * vision.hidden_size + vision.intermediate_size
    embeddings = IMAGES.value * patches // vision.spatial_merge_size**2 * vision.out_hidden_size
    return (patches * row + embeddings) * _FLOAT_BYTES


def make_budget(
    config: ModelConfig,
    *,
    matrix_bytes: int,
    vector_bytes: int,
    context_length: int,
    ranks: int = 1,
    embedding_bytes: int = 0,
    chunk_tokens: int = PREFILL_CHUNK_TOKENS,
    kv_element_bytes: int = KV_ELEMENT_BYTES,
    free_bytes: int | None = None,
) -> Budget:
    """Budget of one device when `ranks` devices share the matrices.

    Vectors and the `embedding_bytes` of the matrices are on every one of them.
    """
    weights = -(-(matrix_bytes - embedding_bytes) // ranks) + embedding_bytes + vector_bytes
    per_token = kv_bytes_per_token(config, ranks, kv_element_bytes)
    state = Sharding(config, 0, ranks).config.state_bytes
    workspace = workspace_bytes(config, chunk_tokens, ranks)
    kv = per_token * context_length
    return Budget(
        weights_bytes=weights,
        kv_bytes_per_token=per_token,
        kv_bytes=kv,
        state_bytes=state,
        workspace_bytes=workspace,
        total_bytes=weights + kv + state + workspace,
        free_bytes=free_bytes,
    )


def largest_context(budget: Budget, max_position: int) -> int:
    """The longest context that fits beside weights, state and workspace; 0 when they alone do not fit."""
    if budget.free_bytes is None:
        return max_position
    room = budget.free_bytes - (budget.weights_bytes + budget.state_bytes + budget.workspace_bytes)
    if room < 0:
        return 0
    return max_position if budget.kv_bytes_per_token == 0 else min(max_position, room // budget.kv_bytes_per_token)
