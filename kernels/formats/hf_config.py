"""config.json -> ModelConfig, for every architecture that is served. Unknown names and absurd numbers are refused."""

from typing import Any

from neuron.kernels.formats.errors import FormatError, FormatKind, shown
from neuron.kernels.formats.fields import (
    MAX_EOS,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_INTERMEDIATE,
    MAX_LAYERS,
    MAX_POSITION,
    MAX_VOCAB,
    Fields,
    JsonFault,
    check_heads,
    decode_object,
    unsupported,
)
from neuron.kernels.formats.model_config import (
    Architecture,
    LayerKind,
    LinearAttentionConfig,
    ModelConfig,
    VisionConfig,
)
from neuron.kernels.formats.rope_config import parse_rope

MAX_CONFIG_BYTES = 4 << 20
WHERE = "config.json"

_ARCHITECTURES = {
    "LlamaForCausalLM": Architecture.LLAMA,
    "Qwen2ForCausalLM": Architecture.QWEN2,
    "Qwen3ForCausalLM": Architecture.QWEN3,
    "Qwen3_5ForCausalLM": Architecture.QWEN3_5,
    "Qwen3_5ForConditionalGeneration": Architecture.QWEN3_5,
}
#: For files without `architectures`.
_MODEL_TYPES = {
    "llama": Architecture.LLAMA,
    "qwen2": Architecture.QWEN2,
    "qwen3": Architecture.QWEN3,
    "qwen3_5_text": Architecture.QWEN3_5,
    "qwen3_5": Architecture.QWEN3_5,
}
_HEAD_DIM = {Architecture.QWEN3: 128, Architecture.QWEN3_5: 256}


def parse_config(text: bytes) -> ModelConfig:
    """The model that config.json describes.

    Raises FormatError: invalid_model_config, unsupported_architecture (naming it), unsupported_model.
    """
    try:
        document = decode_object(text, MAX_CONFIG_BYTES)
    except JsonFault as error:
        raise FormatError(FormatKind.INVALID_CONFIG, f"{WHERE} {error}.") from error
    outer = Fields(document, WHERE)
    architecture = _architecture(outer)
    nested = outer.table("text_config")
    fields = Fields(nested, f"{WHERE} (text_config)") if nested else outer
    _refuse_quantisation(outer if outer.has("quantization_config") else fields)
    return _config(architecture, fields, outer)


def _architecture(outer: Fields) -> Architecture:
    names: Any = outer.raw("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        name, known = names[0], _ARCHITECTURES.get(names[0])
    else:
        name = outer.text("model_type", "")
        known = _MODEL_TYPES.get(name)
    if known is None:
        described = shown(name) if name else "none at all"
        raise FormatError(
            FormatKind.UNSUPPORTED_ARCHITECTURE,
            f"The architecture {described} is not supported; supported are {', '.join(_ARCHITECTURES)}.",
        )
    return known


def _config(architecture: Architecture, fields: Fields, outer: Fields) -> ModelConfig:
    hidden = fields.integer("hidden_size", 1, MAX_HIDDEN)
    layers = fields.integer("num_hidden_layers", 1, MAX_LAYERS)
    heads = fields.integer("num_attention_heads", 1, MAX_HEADS)
    kv_heads = fields.integer("num_key_value_heads", 1, MAX_HEADS, heads)
    head_dim = fields.integer("head_dim", 1, MAX_HEAD_DIM, _HEAD_DIM.get(architecture, hidden // heads))
    check_heads(fields, heads, kv_heads, head_dim)
    max_position = fields.integer("max_position_embeddings", 1, MAX_POSITION)
    if fields.text("hidden_act", "silu") not in ("silu", "swish"):
        raise unsupported(WHERE, "another activation than SiLU is not supported.")
    hybrid = architecture is Architecture.QWEN3_5
    bias = fields.flag("attention_bias", False)
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size", 1, MAX_VOCAB),
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=fields.integer("intermediate_size", 1, MAX_INTERMEDIATE),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-12, 1.0, 1e-6),
        max_position=max_position,
        rope=parse_rope(fields, WHERE, head_dim=head_dim, max_position=max_position, hybrid=hybrid),
        layer_kinds=_layer_kinds(fields, architecture, layers, max_position),
        tie_word_embeddings=_tied(fields, outer),
        attention_bias=architecture is Architecture.QWEN2 or bias,
        attention_out_bias=architecture is not Architecture.QWEN2 and bias,
        mlp_bias=architecture is Architecture.LLAMA and fields.flag("mlp_bias", False),
        qk_norm=architecture in (Architecture.QWEN3, Architecture.QWEN3_5),
        zero_centred_norms=hybrid,
        attn_output_gate=hybrid and _gated(fields),
        linear=_linear(fields) if hybrid else None,
        vision=_vision(outer) if hybrid else None,
        eos_token_ids=_eos(fields, outer),
        bos_token_id=_token(fields, outer, "bos_token_id"),
        image_token_id=_token(fields, outer, "image_token_id"),
        vision_start_token_id=_token(fields, outer, "vision_start_token_id"),
        vision_end_token_id=_token(fields, outer, "vision_end_token_id"),
    )


def _layer_kinds(fields: Fields, architecture: Architecture, layers: int, max_position: int) -> tuple[LayerKind, ...]:
    """The kind of each layer, from layer_types or full_attention_interval; a sliding window must be off."""
    kinds: Any = fields.raw("layer_types")
    if kinds is None:
        _refuse_window(fields, layers, max_position)
        if architecture is not Architecture.QWEN3_5:
            return (LayerKind.FULL,) * layers
        interval = fields.integer("full_attention_interval", 1, MAX_LAYERS, 4)
        return tuple(LayerKind.LINEAR if (i + 1) % interval else LayerKind.FULL for i in range(layers))
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise fields.fault(f"layer_types must name the kind of each of the {layers} layers.")
    allowed = {LayerKind.FULL.value} | ({LayerKind.LINEAR.value} if architecture is Architecture.QWEN3_5 else set())
    for kind in kinds:
        if not isinstance(kind, str) or kind not in allowed:
            raise unsupported(WHERE, f"the layer type {shown(str(kind))} is not supported in this architecture.")
    return tuple(LayerKind(kind) for kind in kinds)


def _refuse_window(fields: Fields, layers: int, max_position: int) -> None:
    if not fields.flag("use_sliding_window", False) or not fields.has("sliding_window"):
        return
    window = fields.integer("sliding_window", 1, MAX_POSITION)
    if window < max_position and fields.integer("max_window_layers", 0, MAX_LAYERS, 0) < layers:
        raise unsupported(WHERE, f"sliding-window attention (window {window}) is not supported.")


def _tied(fields: Fields, outer: Fields) -> bool | None:
    """True or False when the file says so in one voice, at either level; None lets the tensors decide."""
    said = {level.flag("tie_word_embeddings") for level in (fields, outer) if level.has("tie_word_embeddings")}
    return said.pop() if len(said) == 1 else None


def _gated(fields: Fields) -> bool:
    if fields.text("output_gate_type", "swish") not in ("swish", "silu"):
        raise unsupported(WHERE, "another output gate than swish is not supported.")
    return fields.flag("attn_output_gate", True)


def _linear(fields: Fields) -> LinearAttentionConfig:
    key_heads = fields.integer("linear_num_key_heads", 1, MAX_HEADS, 16)
    value_heads = fields.integer("linear_num_value_heads", 1, MAX_HEADS, 32)
    if value_heads % key_heads:
        raise fields.fault(f"{value_heads} linear value heads are no multiple of {key_heads} key heads.")
    return LinearAttentionConfig(
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=fields.integer("linear_key_head_dim", 1, MAX_HEAD_DIM, 128),
        value_dim=fields.integer("linear_value_head_dim", 1, MAX_HEAD_DIM, 128),
        conv_kernel=fields.integer("linear_conv_kernel_dim", 2, 16, 4),
    )


def _vision(outer: Fields) -> VisionConfig | None:
    table = outer.table("vision_config")
    if not table or outer.flag("language_model_only", False):
        return None
    vision = Fields(table, f"{WHERE} (vision_config)")
    return VisionConfig(
        depth=vision.integer("depth", 1, MAX_LAYERS, 27),
        hidden_size=vision.integer("hidden_size", 1, MAX_HIDDEN, 1152),
        intermediate_size=vision.integer("intermediate_size", 1, MAX_INTERMEDIATE, 4304),
        num_heads=vision.integer("num_heads", 1, MAX_HEADS, 16),
        patch_size=vision.integer("patch_size", 1, 128, 16),
        temporal_patch_size=vision.integer("temporal_patch_size", 1, 16, 2),
        spatial_merge_size=vision.integer("spatial_merge_size", 1, 16, 2),
        num_position_embeddings=vision.integer("num_position_embeddings", 1, 1 << 20, 2304),
        out_hidden_size=vision.integer("out_hidden_size", 1, MAX_HIDDEN, 3584),
    )


def _eos(fields: Fields, outer: Fields) -> tuple[int, ...]:
    """End tokens named at either level, in order, without repeats."""
    ids = (
        *outer.integers("eos_token_id", 0, MAX_VOCAB, MAX_EOS),
        *fields.integers("eos_token_id", 0, MAX_VOCAB, MAX_EOS),
    )
    return tuple(dict.fromkeys(ids))


def _token(fields: Fields, outer: Fields, key: str) -> int | None:
    ids = outer.integers(key, 0, MAX_VOCAB, MAX_EOS) or fields.integers(key, 0, MAX_VOCAB, MAX_EOS)
    return ids[0] if ids else None


def _refuse_quantisation(fields: Fields) -> None:
    """Only the FP8 releases with 128x128 blocks are read; every other stored quantisation is refused by name."""
    table = fields.table("quantization_config")
    if not table:
        return
    quantisation = Fields(table, f"{WHERE} (quantization_config)")
    method = quantisation.text("quant_method", "unknown")
    block = quantisation.raw("weight_block_size")
    if method != "fp8" or block not in (None, [128, 128]) or quantisation.text("fmt", "e4m3") != "e4m3":
        raise unsupported(WHERE, f"weights quantised by {shown(method)} are not supported in this form.")
