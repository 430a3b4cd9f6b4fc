"""A GGUF of the hybrid as a transformers model in float32: every converter convention undone by plain array code.

Shares nothing with the loader under test; blocks are dequantised by the `gguf` package.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from gguf import GGUFReader
from gguf.quants import dequantize

from tests.kernels.decoder.tiny import Floats

LINEAR = {
    "attn_qkv.weight": "linear_attn.in_proj_qkv.weight",
    "attn_gate.weight": "linear_attn.in_proj_z.weight",
    "ssm_alpha.weight": "linear_attn.in_proj_a.weight",
    "ssm_beta.weight": "linear_attn.in_proj_b.weight",
    "ssm_conv1d.weight": "linear_attn.conv1d.weight",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_norm.weight": "linear_attn.norm.weight",
    "ssm_out.weight": "linear_attn.out_proj.weight",
}
BOTH = {
    "attn_norm.weight": "input_layernorm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
}
TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


def model_of(path: Path, config: Path) -> Any:
    """The file's own numbers in a Qwen3_5ForCausalLM of the config.json it was converted from."""
    settings = transformers.Qwen3_5TextConfig.from_pretrained(config)
    model = transformers.Qwen3_5ForCausalLM(settings).float().eval()
    tensors = {}
    for tensor in GGUFReader(path).tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        name, undone = _undone(tensor.name, values.reshape(tuple(int(n) for n in tensor.shape[::-1])), settings)
        tensors[name] = torch.from_numpy(np.ascontiguousarray(undone))
    if "lm_head.weight" not in tensors:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    model.load_state_dict(tensors, strict=True)
    return model


def _undone(name: str, values: Floats, settings: Any) -> tuple[str, Floats]:
    if name == "output.weight":
        return "lm_head.weight", values
    if name in TOP:
        return TOP[name], values - 1 if name == "output_norm.weight" else values
    _, layer, rest = name.split(".", 2)
    target = f"model.layers.{layer}." + {**BOTH, **LINEAR}[rest]
    if rest.endswith("norm.weight") and rest != "ssm_norm.weight":
        return target, values - 1
    if rest not in LINEAR:
        return target, values
    return target, _grouped(rest, values, settings)


def _grouped(rest: str, values: Floats, settings: Any) -> Floats:
    keys, heads = settings.linear_num_key_heads, settings.linear_num_value_heads
    width = settings.linear_value_head_dim
    order: npt.NDArray[np.int64] = np.arange(heads).reshape(-1, keys).T.reshape(-1)
    rows: npt.NDArray[np.int64] = (order[:, None] * width + np.arange(width)).reshape(-1)
    first = 2 * keys * settings.linear_key_head_dim
    if rest == "ssm_a":
        logarithm: Floats = np.log(-values)
        return logarithm[order]
    if rest in ("ssm_dt.bias", "ssm_alpha.weight", "ssm_beta.weight"):
        return values[order]
    if rest == "attn_gate.weight":
        return values[rows]
    if rest == "ssm_out.weight":
        return values[:, rows]
    if rest in ("attn_qkv.weight", "ssm_conv1d.weight"):
        moved = np.concatenate([values[:first], values[first:][rows]])
        return moved[:, None] if rest == "ssm_conv1d.weight" else moved
    return values


def log_probabilities(logits: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    wide = logits.astype(np.float64) - logits.max()
    found: npt.NDArray[np.float64] = wide - np.log(np.exp(wide).sum())
    return found
