"""Which tensors a model must have, by the names of either file format; what else may lie beside them.

`check_tensors` is called before weights are read: by preflight on headers, by the loader on opened files.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Protocol, TypeAlias

import msgspec

from neuron.kernels.formats.errors import FormatError, FormatKind, shown
from neuron.kernels.formats.model_config import LayerKind, LinearAttentionConfig, ModelConfig
from neuron.kernels.formats.safetensors import FP8, SCALE_SUFFIX

Shape: TypeAlias = tuple[int, ...]

GGUF = "gguf"
SAFETENSORS = "safetensors"
#: Where published checkpoints put the text model; the first is the default.
PREFIXES = ("model.", "model.language_model.", "language_model.model.")
HEAD = {GGUF: "output.weight", SAFETENSORS: "lm_head.weight"}
ROPE_FREQUENCIES = "rope_freqs.weight"

_READ_DTYPES = ("F32", "F16", "BF16", FP8)
_IGNORED = {
    SAFETENSORS: re.compile(r"mtp\.|model\.visual\.|visual\.|model\.mtp\.|.*\.rotary_emb\.inv_freq$"),
    GGUF: re.compile(r"rope_freqs\.weight$"),
}
_BLOCK = re.compile(r"blk\.(\d{1,6})\.")


class HasShape(Protocol):
    @property
    def shape(self) -> Shape: ...


class TensorCheck(msgspec.Struct, frozen=True):
    """What `check_tensors` found. `prefix` of the text model's names; `tied`: the head is the embedding."""

    prefix: str
    tied: bool
    ignored: tuple[str, ...]


def expected_tensors(
    config: ModelConfig, format: str, *, prefix: str = PREFIXES[0], tied: bool | None = None
) -> dict[str, Shape]:
    """Name -> shape (rows first) of every tensor of `config` in files of `format` ("gguf" or "safetensors").

    The head is listed unless `tied` (default: the config's word, False when it has none).
    """
    tied = bool(config.tie_word_embeddings) if tied is None else tied
    if format == GGUF:
        names = _gguf_top(config)
        for layer, kind in enumerate(config.layer_kinds):
            names |= {f"blk.{layer}.{name}": shape for name, shape in _gguf_layer(config, kind).items()}
    else:
        names = _dense_top(config, prefix)
        for layer, kind in enumerate(config.layer_kinds):
            stem = f"{prefix}layers.{layer}."
            names |= {stem + name: shape for name, shape in _dense_layer(config, kind).items()}
    if not tied:
        names[HEAD[format]] = (config.vocab_size, config.hidden_size)
    return names


def check_tensors(config: ModelConfig, tensors: Mapping[str, HasShape], format: str) -> TensorCheck:
    """Check the tensors of a model against its config. With `tie_word_embeddings` true a head that is there all the
    same is passed over; with None its presence decides; with false it must be there.

    Raises FormatError: corrupt_weights or invalid_gguf (missing, misshapen or left over, naming the tensor),
    unsupported_model (a data type that is not read).
    """
    kind = FormatKind.INVALID_GGUF if format == GGUF else FormatKind.CORRUPT_WEIGHTS
    head = HEAD[format]
    prefix = "" if format == GGUF else text_prefix(tensors)
    tied = config.tie_word_embeddings
    if tied is None:
        tied = head not in tensors
    expected = expected_tensors(config, format, prefix=prefix, tied=tied)
    for name, shape in expected.items():
        tensor = tensors.get(name)
        if tensor is None:
            raise FormatError(kind, f"Tensor {name} is missing; the download may be incomplete.")
        if tensor.shape != shape:
            raise FormatError(kind, f"Tensor {name} is {list(tensor.shape)}, and {list(shape)} by the model's config.")
        dtype = getattr(tensor, "dtype", None)
        if dtype is not None and dtype not in _READ_DTYPES:
            raise FormatError(FormatKind.UNSUPPORTED_MODEL, f"Tensor {name} of type {dtype} is not supported.")
    ignored = _leftover(expected, tensors, format, kind, tied)
    return TensorCheck(prefix, tied, ignored)


def text_prefix(names: Iterable[str]) -> str:
    """The prefix under which the text model's embedding is found; the usual one when it is nowhere."""
    present = set(names)
    return next((prefix for prefix in PREFIXES if f"{prefix}embed_tokens.weight" in present), PREFIXES[0])


def _leftover(
    expected: Mapping[str, Shape], tensors: Mapping[str, HasShape], format: str, kind: FormatKind, tied: bool
) -> tuple[str, ...]:
    ignored: list[str] = []
    mtp_blocks = {_block(name) for name in tensors if ".nextn." in name} if format == GGUF else set()
    for name in tensors:
        if name in expected:
            continue
        scale_of = name.removesuffix(SCALE_SUFFIX)
        if scale_of != name and scale_of in expected:
            continue
        tolerated = (tied and name == HEAD[format]) or _IGNORED[format].match(name)
        if not tolerated and not (_block(name) is not None and _block(name) in mtp_blocks):
            raise FormatError(kind, f"Tensor {shown(name)} is no part of this architecture.")
        ignored.append(name)
    return tuple(ignored)


def _block(name: str) -> int | None:
    match = _BLOCK.match(name)
    return int(match[1]) if match else None


def _widths(config: ModelConfig) -> tuple[int, int, int]:
    """Rows of q_proj (query and gate when gated), of k_proj and v_proj, and columns of o_proj."""
    query = config.num_heads * config.head_dim
    return (2 * query if config.attn_output_gate else query), config.num_kv_heads * config.head_dim, query


def _channels(linear: LinearAttentionConfig) -> tuple[int, int]:
    """Channels of the convolution (q, k and v), and of the values alone."""
    values = linear.value_heads * linear.value_dim
    return 2 * linear.key_heads * linear.key_dim + values, values


def _dense_top(config: ModelConfig, prefix: str) -> dict[str, Shape]:
    return {
        f"{prefix}embed_tokens.weight": (config.vocab_size, config.hidden_size),
        f"{prefix}norm.weight": (config.hidden_size,),
    }


def _dense_layer(config: ModelConfig, kind: LayerKind) -> dict[str, Shape]:
    hidden, inner = config.hidden_size, config.intermediate_size
    names: dict[str, Shape] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config.mlp_bias:
        names |= {"mlp.gate_proj.bias": (inner,), "mlp.up_proj.bias": (inner,), "mlp.down_proj.bias": (hidden,)}
    if kind is LayerKind.LINEAR and config.linear is not None:
        return names | _dense_linear(config.linear, hidden)
    query, key_value, columns = _widths(config)
    names |= {
        "self_attn.q_proj.weight": (query, hidden),
        "self_attn.k_proj.weight": (key_value, hidden),
        "self_attn.v_proj.weight": (key_value, hidden),
        "self_attn.o_proj.weight": (hidden, columns),
    }
    if config.attention_bias:
        names |= {
            "self_attn.q_proj.bias": (query,),
            "self_attn.k_proj.bias": (key_value,),
            "self_attn.v_proj.bias": (key_value,),
        }
    if config.attention_out_bias:
        names["self_attn.o_proj.bias"] = (hidden,)
    if config.qk_norm:
        names |= {"self_attn.q_norm.weight": (config.head_dim,), "self_attn.k_norm.weight": (config.head_dim,)}
    return names


def _dense_linear(linear: LinearAttentionConfig, hidden: int) -> dict[str, Shape]:
    channels, values = _channels(linear)
    return {
        "linear_attn.in_proj_qkv.weight": (channels, hidden),
        "linear_attn.in_proj_z.weight": (values, hidden),
        "linear_attn.in_proj_a.weight": (linear.value_heads, hidden),
        "linear_attn.in_proj_b.weight": (linear.value_heads, hidden),
        "linear_attn.conv1d.weight": (channels, 1, linear.conv_kernel),
        "linear_attn.A_log": (linear.value_heads,),
        "linear_attn.dt_bias": (linear.value_heads,),
        "linear_attn.norm.weight": (linear.value_dim,),
        "linear_attn.out_proj.weight": (hidden, values),
    }


def _gguf_top(config: ModelConfig) -> dict[str, Shape]:
    names: dict[str, Shape] = {
        "token_embd.weight": (config.vocab_size, config.hidden_size),
        "output_norm.weight": (config.hidden_size,),
    }
    if config.rope.has_frequency_factors:
        names[ROPE_FREQUENCIES] = (config.rope.rotary_dim // 2,)
    return names


def _gguf_layer(config: ModelConfig, kind: LayerKind) -> dict[str, Shape]:
    hidden, inner = config.hidden_size, config.intermediate_size
    # The hybrid's converter names the norm before the MLP after its place, the others after its user.
    norm = "post_attention_norm" if config.linear is not None else "ffn_norm"
    names: dict[str, Shape] = {
        "attn_norm.weight": (hidden,),
        f"{norm}.weight": (hidden,),
        "ffn_gate.weight": (inner, hidden),
        "ffn_up.weight": (inner, hidden),
        "ffn_down.weight": (hidden, inner),
    }
    if config.mlp_bias:
        names |= {"ffn_gate.bias": (inner,), "ffn_up.bias": (inner,), "ffn_down.bias": (hidden,)}
    if kind is LayerKind.LINEAR and config.linear is not None:
        return names | _gguf_linear(config.linear, hidden)
    query, key_value, columns = _widths(config)
    names |= {
        "attn_q.weight": (query, hidden),
        "attn_k.weight": (key_value, hidden),
        "attn_v.weight": (key_value, hidden),
        "attn_output.weight": (hidden, columns),
    }
    if config.attention_bias:
        names |= {"attn_q.bias": (query,), "attn_k.bias": (key_value,), "attn_v.bias": (key_value,)}
    if config.attention_out_bias:
        names["attn_output.bias"] = (hidden,)
    if config.qk_norm:
        names |= {"attn_q_norm.weight": (config.head_dim,), "attn_k_norm.weight": (config.head_dim,)}
    return names


def _gguf_linear(linear: LinearAttentionConfig, hidden: int) -> dict[str, Shape]:
    channels, values = _channels(linear)
    return {
        "attn_qkv.weight": (channels, hidden),
        "attn_gate.weight": (values, hidden),
        "ssm_alpha.weight": (linear.value_heads, hidden),
        "ssm_beta.weight": (linear.value_heads, hidden),
        "ssm_conv1d.weight": (channels, linear.conv_kernel),
        "ssm_a": (linear.value_heads,),
        "ssm_dt.bias": (linear.value_heads,),
        "ssm_norm.weight": (linear.value_dim,),
        "ssm_out.weight": (hidden, values),
    }
