"""A tiny hybrid as the usual converter writes it to GGUF, with any one of its four conventions left out."""

from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.kernels.decoder.tiny import Floats
from tests.kernels.formats.gguf_files import GgufBuilder, Tensor, tensor
from tests.kernels.hybrid.oracle import BOTH, LINEAR, TOP


class Convention(StrEnum):
    NORMS = "norms are stored as 1 + w"
    DECAY = "the decay is stored as -exp(A_log)"
    TILED = "value heads are tiled"
    CONV = "the convolution is stored [channels, kernel]"


def write(model: Any, path: Path, without: Convention | None = None, tokens: list[str] | None = None) -> Path:
    """The transformers model as a float32 GGUF of architecture qwen35, with a vocabulary of `tokens` if given."""
    settings = model.config
    extra = {} if tokens is None else {"tokenizer.ggml.tokens": tokens}
    names = {hf: gguf for gguf, hf in (TOP | BOTH | LINEAR).items()}
    tensors: list[Tensor] = []
    for name, value in model.state_dict().items():
        array: Floats = value.float().numpy()
        if name == "lm_head.weight":
            tensors.append(tensor("output.weight", array))
            continue
        prefix = ""
        if name.startswith("model.layers."):
            _, _, layer, name = name.split(".", 3)
            prefix = f"blk.{layer}."
        target = names[name]
        tensors.append(tensor(prefix + target, _converted(target, array, settings, without)))
    path.write_bytes(GgufBuilder(_metadata(settings) | extra, tensors).build())
    return path


def _converted(name: str, array: Floats, settings: Any, without: Convention | None) -> Floats:
    if name.endswith("norm.weight") and name != "ssm_norm.weight":
        return array if without is Convention.NORMS else array + 1
    if name == "ssm_a" and without is not Convention.DECAY:
        array = np.negative(np.exp(array))
    if name == "ssm_conv1d.weight":
        array = array[:, 0]
    if without is not Convention.TILED:
        array = _tiled(name, array, settings)
    if name == "ssm_conv1d.weight" and without is Convention.CONV:
        array = np.ascontiguousarray(array.T).reshape(array.shape)
    return np.ascontiguousarray(array)


def _tiled(name: str, array: Floats, settings: Any) -> Floats:
    keys, heads, width = settings.linear_num_key_heads, settings.linear_num_value_heads, settings.linear_value_head_dim
    order: npt.NDArray[np.int64] = np.arange(heads).reshape(keys, -1).T.reshape(-1)
    rows: npt.NDArray[np.int64] = (order[:, None] * width + np.arange(width)).reshape(-1)
    first = 2 * keys * settings.linear_key_head_dim
    if name in ("ssm_a", "ssm_dt.bias", "ssm_alpha.weight", "ssm_beta.weight"):
        return array[order]
    if name == "attn_gate.weight":
        return array[rows]
    if name == "ssm_out.weight":
        return array[:, rows]
    if name in ("attn_qkv.weight", "ssm_conv1d.weight"):
        return np.concatenate([array[:first], array[first:][rows]])
    return array


def _metadata(settings: Any) -> dict[str, Any]:
    rope = settings.rope_parameters
    values = {
        "block_count": settings.num_hidden_layers,
        "context_length": settings.max_position_embeddings,
        "embedding_length": settings.hidden_size,
        "feed_forward_length": settings.intermediate_size,
        "attention.head_count": settings.num_attention_heads,
        "attention.head_count_kv": settings.num_key_value_heads,
        "attention.key_length": settings.head_dim,
        "attention.value_length": settings.head_dim,
        "attention.layer_norm_rms_epsilon": settings.rms_norm_eps,
        "attention.recurrent_layers": [kind == "linear_attention" for kind in settings.layer_types],
        "rope.freq_base": rope["rope_theta"],
        "rope.dimension_count": int(settings.head_dim * rope["partial_rotary_factor"]),
        "rope.dimension_sections": [*rope["mrope_section"], 0],
        "ssm.conv_kernel": settings.linear_conv_kernel_dim,
        "ssm.state_size": settings.linear_key_head_dim,
        "ssm.group_count": settings.linear_num_key_heads,
        "ssm.time_step_rank": settings.linear_num_value_heads,
        "ssm.inner_size": settings.linear_num_value_heads * settings.linear_value_head_dim,
    }
    return {"general.architecture": "qwen35"} | {f"qwen35.{key}": value for key, value in values.items()}
