"""How a hybrid's tensors are brought to one form, whichever file they come from. Used while loading only.

The usual GGUF converter stores -exp(A_log) for A_log, norms as 1 + w, and value heads in tiled order. The order stays
as it is (quantised columns cannot be moved); everything else is made alike here and in decoder.weights.
"""

import numpy as np

from neuron.kernels.formats.model_config import LinearAttentionConfig
from neuron.kernels.weights.matrix import Floats, Matrix, aligned_bytes, empty_matrix

MATRICES = ("linear_qkv", "linear_z", "linear_a", "linear_b", "linear_out")
VECTORS = ("linear_conv", "linear_decay", "linear_dt_bias", "linear_norm")


def prepared(role: str, vector: Floats, linear: LinearAttentionConfig) -> Floats:
    """`vector` as the kernels read it: convolution taps [kernel, channels], decay = -exp(A_log)."""
    if role == "linear_conv":
        return transposed_taps(vector, linear.conv_kernel)
    if role == "linear_decay" and not linear.decay_is_stored:
        np.exp(vector, out=vector)
        np.negative(vector, out=vector)
    return vector


def transposed_taps(weight: Floats, kernel: int) -> Floats:
    """Both formats store [channels, kernel]; the step wants neighbouring channels side by side: [kernel * channels]."""
    result: Floats = aligned_bytes(weight.nbytes).view(np.float32)
    result.reshape(kernel, -1)[:] = weight.reshape(-1, kernel).T
    return result


def split_gate_bias(bias: Floats, heads: int) -> tuple[Floats, Floats]:
    """q_proj's bias as the query's and the gate's."""
    parts = bias.reshape(heads, 2, -1)
    query, gate = (aligned_bytes(bias.nbytes // 2).view(np.float32) for _ in range(2))
    query.reshape(heads, -1)[:], gate.reshape(heads, -1)[:] = parts[:, 0], parts[:, 1]
    return query, gate


def split_gate(matrix: Matrix, heads: int) -> tuple[Matrix, Matrix]:
    """q_proj of gated attention, rows [heads, (query, gate), head_dim], as the query's and the gate's matrix."""
    rows = matrix.rows // 2
    parts = matrix.data.reshape(heads, 2, rows // heads, matrix.row_bytes)
    query, gate = (empty_matrix(matrix.kind, rows, matrix.cols) for _ in range(2))
    query.data.reshape(heads, -1, matrix.row_bytes)[:] = parts[:, 0]
    gate.data.reshape(heads, -1, matrix.row_bytes)[:] = parts[:, 1]
    return query, gate
