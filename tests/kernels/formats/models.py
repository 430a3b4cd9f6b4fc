"""Tiny models of every architecture, as config.json, GGUF metadata and zero tensors. Used by tests of sources too."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from neuron.kernels.formats.expected import GGUF, SAFETENSORS, expected_tensors
from neuron.kernels.formats.hf_config import parse_config
from tests.kernels.formats.gguf_files import GgufBuilder, tensor
from tests.kernels.formats.safetensors_files import from_arrays

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"]}
QWEN3 = LLAMA | {"architectures": ["Qwen3ForCausalLM"], "head_dim": 16, "tie_word_embeddings": True}
HYBRID = LLAMA | {
    "architectures": ["Qwen3_5ForCausalLM"],
    "head_dim": 64,
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "rope_parameters": {
        "rope_theta": 1e6,
        "rope_type": "default",
        "partial_rotary_factor": 0.5,
        "mrope_section": [6, 5, 5],
        "mrope_interleaved": True,
    },
}
ALL = {"llama": LLAMA, "qwen2": QWEN2, "qwen3": QWEN3, "hybrid": HYBRID}


def config_json(config: Mapping[str, Any], **changes: Any) -> bytes:
    """`config` with `changes`; a change to ... leaves the key out."""
    merged = {**config, **changes}
    return json.dumps({key: value for key, value in merged.items() if value is not ...}).encode()


def dense_arrays(config: Mapping[str, Any], prefix: str = "model.", **changes: Any) -> dict[str, np.ndarray]:
    """float32 zeros for every tensor that `config` calls for."""
    parsed = parse_config(config_json(config, **changes))
    shapes = expected_tensors(parsed, SAFETENSORS, prefix=prefix)
    return {name: np.zeros(shape, dtype=np.float32) for name, shape in shapes.items()}


def dense_file(config: Mapping[str, Any], **changes: Any) -> bytes:
    return from_arrays(dense_arrays(config, **changes))


GGUF_LLAMA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 512,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "llama.rope.dimension_count": 8,
    "tokenizer.ggml.eos_token_id": 2,
}
GGUF_HYBRID: dict[str, Any] = {
    "general.architecture": "qwen35",
    "qwen35.block_count": 4,
    "qwen35.context_length": 512,
    "qwen35.embedding_length": 32,
    "qwen35.feed_forward_length": 64,
    "qwen35.attention.head_count": 4,
    "qwen35.attention.head_count_kv": 2,
    "qwen35.attention.key_length": 64,
    "qwen35.attention.value_length": 64,
    "qwen35.attention.layer_norm_rms_epsilon": 1e-6,
    "qwen35.rope.freq_base": 1e6,
    "qwen35.rope.dimension_count": 32,
    "qwen35.rope.dimension_sections": [6, 5, 5, 0],
    "qwen35.full_attention_interval": 4,
    "qwen35.ssm.conv_kernel": 4,
    "qwen35.ssm.state_size": 8,
    "qwen35.ssm.group_count": 2,
    "qwen35.ssm.time_step_rank": 4,
    "qwen35.ssm.inner_size": 64,
}


def gguf_shapes(config: Mapping[str, Any] = LLAMA, *, tied: bool = True) -> dict[str, tuple[int, ...]]:
    """Tensors of the GGUF twin of a config.json model."""
    return expected_tensors(parse_config(config_json(config)), GGUF, tied=tied)


def gguf_file(
    metadata: Mapping[str, Any] = GGUF_LLAMA,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    changes: Mapping[str, Any] | None = None,
) -> bytes:
    shapes = gguf_shapes() if shapes is None else shapes
    tensors = [tensor(name, np.zeros(shape, dtype=np.float32)) for name, shape in shapes.items()]
    merged = {key: value for key, value in {**metadata, **(changes or {})}.items() if value is not ...}
    return GgufBuilder(merged, tensors).build()
