"""`python -m neuron.kernels.warm`: compile everything for this host's CPU, so that no load has to wait for it.

Compiled code does not depend on a model's shape: a tiny one made here leads to the same machine code.
"""

import sys
import time

import numpy as np
import torch

from neuron.kernels.compile_cache import cache_directory, prune
from neuron.kernels.decoder.buffers import STEP_ROWS
from neuron.kernels.decoder.weights import DecoderWeights, LayerWeights
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.formats.model_config import (
    Architecture,
    LayerKind,
    LinearAttentionConfig,
    ModelConfig,
    RopeConfig,
)
from neuron.kernels.layered.block_linear import BlockLinear
from neuron.kernels.load import build_model, warm_up
from neuron.kernels.progress import reported
from neuron.kernels.quant.quantise import quantise_into
from neuron.kernels.threads import Team
from neuron.kernels.weights.matrix import Floats, Matrix, aligned_bytes, empty_matrix

_SIZE = 32


def tiny_model_config() -> ModelConfig:
    """One layer of each kind, of width 32: the hybrid runs everything that the others run."""
    return ModelConfig(
        architecture=Architecture.QWEN3_5,
        vocab_size=_SIZE,
        hidden_size=_SIZE,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        intermediate_size=_SIZE,
        rms_norm_eps=1e-5,
        max_position=64,
        rope=RopeConfig(theta=10000.0, rotary_dim=16),
        layer_kinds=(LayerKind.LINEAR, LayerKind.FULL),
        attn_output_gate=True,
        linear=LinearAttentionConfig(key_heads=1, value_heads=2, key_dim=16, value_dim=16, conv_kernel=4),
    )


def tiny_weights(config: ModelConfig) -> DecoderWeights:
    """Weights of zeros, quantised."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    mlp = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    full = {"q": (query, hidden), "q_gate": (query, hidden), "k": (key, hidden), "v": (key, hidden)}
    full |= {"o": (hidden, query)}
    embedding, layers = _zeros(config.vocab_size, hidden), []
    for kind in config.layer_kinds:
        shapes, vectors = full, {"attn_norm": hidden, "ffn_norm": hidden}
        if kind is LayerKind.LINEAR and config.linear is not None:
            shapes = _linear_shapes(config.linear, hidden)
            channels = shapes["linear_qkv"][0]
            vectors |= {"linear_conv": config.linear.conv_kernel * channels, "linear_norm": config.linear.value_dim}
            vectors |= {"linear_decay": config.linear.value_heads, "linear_dt_bias": config.linear.value_heads}
        layers.append(
            LayerWeights(
                {role: _zeros(*shape) for role, shape in (shapes | mlp).items()},
                {role: _ones(size) for role, size in vectors.items()},
            )
        )
    return DecoderWeights(embedding, embedding, _ones(hidden), layers)


def _linear_shapes(linear: LinearAttentionConfig, hidden: int) -> dict[str, tuple[int, int]]:
    values, heads = linear.value_heads * linear.value_dim, linear.value_heads
    return {
        "linear_qkv": (2 * linear.key_heads * linear.key_dim + values, hidden),
        "linear_z": (values, hidden),
        "linear_a": (heads, hidden),
        "linear_b": (heads, hidden),
        "linear_out": (hidden, values),
    }


def main() -> None:
    start = time.perf_counter()
    prune()
    config = tiny_model_config()
    model = build_model(config, tiny_weights(config), Team(2), 64)
    with reported(_show):
        warm_up(model)
        quantise_once()
        multiply_once()
    model.close()
    place = cache_directory() or "memory only: no folder can be written to"
    sys.stdout.write(f"compiled for this CPU in {time.perf_counter() - start:.1f} s ({place})\n")


def quantise_once() -> None:
    """Run the quantiser of every block type, so that no load with a `quant` has to compile one."""
    team = Team(2)
    for kind in GgmlType:
        values = np.zeros((2, kind.block_size), dtype=np.float32)
        quantise_into(kind, values, np.empty((2, kind.nbytes(kind.block_size)), dtype=np.uint8), team)
    team.close()


def multiply_once() -> None:
    """The products that the ranks of a group run by themselves, outside a compiled step."""
    team = Team(2)
    linear = BlockLinear(_zeros(_SIZE, _SIZE), torch.float32, team)
    for rows in (1, STEP_ROWS + 1):
        linear.forward(torch.zeros(rows, _SIZE))
    team.close()


def _show(_stage: str, fraction: float) -> None:
    """Progress on a terminal; nothing in a log."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{fraction:4.0%} " if fraction < 1.0 else "\r")
        sys.stderr.flush()


def _zeros(rows: int, cols: int) -> Matrix:
    matrix = empty_matrix(GgmlType.Q8_0, rows, cols)
    matrix.data[:] = 0
    return matrix


def _ones(count: int) -> Floats:
    vector = aligned_bytes(count * 4).view(np.float32)
    vector[:] = 1.0
    return vector


if __name__ == "__main__":
    main()
