"""GGUF metadata -> ModelConfig. Keys are those of the `gguf` package; what metadata leaves out, the tensors tell."""

import math
from collections.abc import Mapping
from typing import Protocol

from neuron.kernels.formats.errors import FormatError, FormatKind, shown
from neuron.kernels.formats.fields import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_INTERMEDIATE,
    MAX_LAYERS,
    MAX_POSITION,
    MAX_THETA,
    MAX_TURNS,
    MAX_VOCAB,
    MIN_THETA,
    MIN_TURNS,
    Fields,
    check_heads,
    check_rotary,
    unsupported,
)
from neuron.kernels.formats.gguf_header import GgufTensor, Metadata
from neuron.kernels.formats.model_config import (
    Architecture,
    LayerKind,
    LinearAttentionConfig,
    ModelConfig,
    RopeConfig,
    RopeScaling,
)

WHERE = "GGUF metadata"

_ARCHITECTURES = {
    "llama": Architecture.LLAMA,
    "qwen2": Architecture.QWEN2,
    "qwen3": Architecture.QWEN3,
    "qwen35": Architecture.QWEN3_5,
}
_FACTORS = (
    "attention.scale",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "embedding_scale",
    "residual_scale",
    "logit_scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
)
_SCALING = {"none": RopeScaling.NONE, "linear": RopeScaling.LINEAR, "yarn": RopeScaling.YARN}


class GgufSource(Protocol):
    """An opened file, a set of parts, or a header alone."""

    @property
    def metadata(self) -> Metadata: ...

    @property
    def tensors(self) -> Mapping[str, GgufTensor]: ...


def config_from_gguf(source: GgufSource) -> ModelConfig:
    """The model that a GGUF file describes.

    Raises FormatError: invalid_gguf, unsupported_architecture (naming it), unsupported_model.
    """
    metadata = source.metadata
    general = Fields(metadata, WHERE, FormatKind.INVALID_GGUF)
    name = general.text("general.architecture")
    architecture = _ARCHITECTURES.get(name)
    if architecture is None:
        raise FormatError(
            FormatKind.UNSUPPORTED_ARCHITECTURE,
            f"The GGUF architecture {shown(name)} is not supported; supported are {', '.join(_ARCHITECTURES)}.",
        )
    fields = Fields(metadata, WHERE, FormatKind.INVALID_GGUF, prefix=f"{name}.")
    if fields.integer("expert_count", 0, 1 << 20, 0):
        raise FormatError(
            FormatKind.UNSUPPORTED_ARCHITECTURE, f"The architecture {name} with experts is not supported."
        )
    return _config(architecture, fields, general, source.tensors)


def _config(
    architecture: Architecture, fields: Fields, general: Fields, tensors: Mapping[str, GgufTensor]
) -> ModelConfig:
    hidden = fields.integer("embedding_length", 1, MAX_HIDDEN)
    heads = fields.same_integer("attention.head_count", 1, MAX_HEADS)
    kv_heads = fields.same_integer("attention.head_count_kv", 1, MAX_HEADS, heads)
    head_dim = fields.integer("attention.key_length", 1, MAX_HEAD_DIM, hidden // heads)
    if fields.integer("attention.value_length", 1, MAX_HEAD_DIM, head_dim) != head_dim:
        raise unsupported(WHERE, "keys and values of different width are not supported.")
    check_heads(fields, heads, kv_heads, head_dim)
    max_position = fields.integer("context_length", 1, MAX_POSITION)
    window = fields.integer("attention.sliding_window", 0, MAX_POSITION, 0)
    if 0 < window < max_position:
        raise unsupported(WHERE, f"sliding-window attention (window {window}) is not supported.")
    _check_formula(fields, head_dim)
    blocks = fields.integer("block_count", 1, MAX_LAYERS)
    layers = blocks - fields.integer("nextn_predict_layers", 0, blocks - 1, 0)
    hybrid = architecture is Architecture.QWEN3_5
    kinds = _layer_kinds(fields, layers, blocks) if hybrid else (LayerKind.FULL,) * layers
    # Biases are not in the metadata: the first layer that has attention shows them.
    first = kinds.index(LayerKind.FULL) if LayerKind.FULL in kinds else 0
    return ModelConfig(
        architecture=architecture,
        vocab_size=_vocab_size(fields, tensors),
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=fields.same_integer("feed_forward_length", 1, MAX_INTERMEDIATE),
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon", 1e-12, 1.0),
        max_position=max_position,
        rope=_rope(architecture, fields, head_dim, max_position, "rope_freqs.weight" in tensors),
        layer_kinds=kinds,
        tie_word_embeddings=None,
        attention_bias=f"blk.{first}.attn_q.bias" in tensors,
        attention_out_bias=f"blk.{first}.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_up.bias" in tensors,
        qk_norm=architecture in (Architecture.QWEN3, Architecture.QWEN3_5),
        attn_output_gate=hybrid,
        linear=_linear(fields) if hybrid else None,
        eos_token_ids=_end_tokens(general),
        bos_token_id=_token(general, "tokenizer.ggml.bos_token_id"),
    )


def _check_formula(fields: Fields, head_dim: int) -> None:
    """Keys that change the formula of the architecture: served without them, a model would talk nonsense."""
    for key in _FACTORS:
        neutral = (0.0, head_dim**-0.5) if key == "attention.scale" else (0.0, 1.0) if key.endswith("scale") else (0.0,)
        value = fields.number(key, -1e9, 1e9, 0.0)
        if not any(math.isclose(value, each, rel_tol=1e-3) for each in neutral):
            raise unsupported(WHERE, f"{key} ({value:g}) is not supported.")
    if not fields.flag("attention.causal", True):
        raise unsupported(WHERE, "attention that looks ahead is not supported.")


def _vocab_size(fields: Fields, tensors: Mapping[str, GgufTensor]) -> int:
    """Rows of the embedding, which may exceed the tokenizer's entries."""
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise fields.fault("the tensor token_embd.weight is missing.")
    rows = embedding.shape[0]
    if not 1 <= rows <= MAX_VOCAB:
        raise fields.fault(f"{rows} embedding rows are not a vocabulary.")
    if fields.integer("vocab_size", 1, MAX_VOCAB, rows) > rows:
        raise fields.fault("vocab_size is larger than the embedding.")
    return rows


def _layer_kinds(fields: Fields, layers: int, blocks: int) -> tuple[LayerKind, ...]:
    """From attention.recurrent_layers (one flag for each block) or full_attention_interval."""
    flags = fields.raw("attention.recurrent_layers")
    if flags is None:
        interval = fields.integer("full_attention_interval", 1, MAX_LAYERS, 4)
        return tuple(LayerKind.LINEAR if (i + 1) % interval else LayerKind.FULL for i in range(layers))
    if not isinstance(flags, list) or len(flags) not in (layers, blocks) or any(type(f) is not bool for f in flags):
        raise fields.fault(f"attention.recurrent_layers must hold a flag for each of the {blocks} blocks.")
    return tuple(LayerKind.LINEAR if flag else LayerKind.FULL for flag in flags[:layers])


def _linear(fields: Fields) -> LinearAttentionConfig:
    value_heads = fields.integer("ssm.time_step_rank", 1, MAX_HEADS)
    key_heads = fields.integer("ssm.group_count", 1, MAX_HEADS)
    inner = fields.integer("ssm.inner_size", 1, MAX_INTERMEDIATE)
    if value_heads % key_heads or inner % value_heads:
        raise fields.fault("the linear attention heads do not divide (ssm.time_step_rank, group_count, inner_size).")
    if inner // value_heads > MAX_HEAD_DIM:
        raise fields.fault("ssm.inner_size is too large for its heads.")
    return LinearAttentionConfig(
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=fields.integer("ssm.state_size", 1, MAX_HEAD_DIM),
        value_dim=inner // value_heads,
        conv_kernel=fields.integer("ssm.conv_kernel", 2, 16),
        tiled_value_heads=True,
        decay_is_stored=True,
    )


def _rope(
    architecture: Architecture, fields: Fields, head_dim: int, max_position: int, frequency_factors: bool
) -> RopeConfig:
    name = fields.text("rope.scaling.type", "none")
    scaling = _SCALING.get(name)
    if scaling is None:
        raise unsupported(WHERE, f"the rope scaling type {shown(name)} is not supported.")
    # Files older than rope.scaling.* hold a linear factor under this key.
    factor = fields.number("rope.scaling.factor", 0.0, 4096.0, fields.number("rope.scale_linear", 0.0, 4096.0, 1.0))
    if scaling is RopeScaling.NONE and factor > 1.0 and not fields.has("rope.scaling.type"):
        scaling = RopeScaling.LINEAR
    rotary_dim = fields.integer("rope.dimension_count", 2, MAX_HEAD_DIM, head_dim)
    section = _section(fields)
    check_rotary(fields, rotary_dim, head_dim, section)
    # 0 says that there is none.
    if 0.0 < factor < 1.0:
        raise fields.fault("a rope scaling factor below 1 is not possible.")
    factor = max(factor, 1.0)
    return RopeConfig(
        theta=fields.number("rope.freq_base", MIN_THETA, MAX_THETA, 10_000.0),
        rotary_dim=rotary_dim,
        scaling=scaling,
        factor=1.0 if scaling is RopeScaling.NONE else factor,
        original_max_position=fields.integer("rope.scaling.original_context_length", 1, MAX_POSITION, max_position),
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", MIN_TURNS, MAX_TURNS, 32.0),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", MIN_TURNS, MAX_TURNS, 1.0),
        attention_factor=_attention_factor(fields, scaling, factor),
        mrope_section=section,
        mrope_interleaved=section is not None,
        adjacent_pairs=architecture is Architecture.LLAMA,
        has_frequency_factors=frequency_factors,
    )


def _attention_factor(fields: Fields, scaling: RopeScaling, factor: float) -> float | None:
    """llama.cpp multiplies yarn's own 1 + 0.1 ln(factor) by the file's attn_factor."""
    for key in ("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"):
        if scaling is RopeScaling.YARN and fields.has(key):
            return fields.number(key, 0.0, 1e3) * (1.0 + 0.1 * math.log(factor))
    return None


def _section(fields: Fields) -> tuple[int, int, int] | None:
    sections = fields.integers("rope.dimension_sections", 0, MAX_HEAD_DIM, 4)
    if not any(sections):
        return None
    if len(sections) < 3 or any(sections[3:]):
        raise unsupported(WHERE, "rope.dimension_sections other than three are not supported.")
    return (sections[0], sections[1], sections[2])


def _end_tokens(general: Fields) -> tuple[int, ...]:
    ids = [_token(general, f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    return tuple(dict.fromkeys(token for token in ids if token is not None))


def _token(general: Fields, key: str) -> int | None:
    # Converters write 0xFFFFFFFF (minus one) for "none".
    value = general.integer(key, -1, 0xFFFFFFFF, -1)
    return value if 0 <= value <= MAX_VOCAB else None
