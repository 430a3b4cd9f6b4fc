"""What the compiled step reads: the shape of the model, its weights by address, its buffers. Built once per model."""

from typing import NamedTuple


class StepShape(NamedTuple):
    """Sizes in elements unless they say bytes. Flags are 0 or 1; kinds are GgmlType numbers."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    vocab: int
    rotary_dim: int
    adjacent: int
    kv_kind: int
    kv_size: int
    kv_head_bytes: int
    kv_layer_bytes: int
    scale: float
    epsilon: float
    #: Linear (Gated DeltaNet) layers; bytes of one layer's state, and of the convolution's ring before the states.
    linear_key_heads: int = 0
    linear_value_heads: int = 0
    linear_key_dim: int = 0
    linear_value_dim: int = 0
    conv_kernel: int = 1
    tiled_value_heads: int = 0
    state_layer_bytes: int = 0
    state_ring_bytes: int = 0


class StepBuffers(NamedTuple):
    """Addresses. "private": one part per thread, `private_*` bytes apart; the others are shared."""

    barrier: int
    #: float32 [rows, hidden], the residual stream
    x: int
    #: float32 [rows, query width], [rows, key width], [rows, key width]
    query: int
    key: int
    value: int
    #: float32 [rows, intermediate]
    gate: int
    up: int
    #: float32 [rows, widest]: a product before it is added to x
    product: int
    #: attention: float32 [rows, heads, splits, 2 + head_dim]
    partial: int
    #: cosines and sines, float32 [rows, 2, rotary_dim / 2]
    rope: int
    #: per row: position, address of the sequence's cache (int64 each)
    positions: int
    caches: int
    #: private: normed activations float32 [rows, widest], as int16 [rows, widest], their scales and sums
    #: [rows, widest / 32, 2], attention scores [HEADS, TILE]
    normed: int
    quants: int
    scales: int
    scores: int
    private_normed: int
    private_quants: int
    private_scales: int
    private_scores: int
    #: bytes from one row to the next of `normed`, `quants`, `scales`
    normed_step: int
    quants_step: int
    scales_step: int
    #: float32 [rows, query width]: gate of the attention's output
    query_gate: int = 0
    #: linear layers: float32 [rows, channels], [rows, value width] twice, [rows, value heads] twice
    mixed: int = 0
    z: int = 0
    linear_out: int = 0
    alpha: int = 0
    beta: int = 0
    #: per row: address of the sequence's recurrent state (int64)
    states: int = 0
    #: private: float32 [2 K + 2 V]
    linear_scratch: int = 0
    private_linear: int = 0


# Columns of the layer table, int64 [layers + 1, WIDTH]. A matrix takes four: kind, address, row bytes, rows.
LAYER_KIND = 0
Q, K, V, O = 1, 5, 9, 13  # noqa: E741
GATE, UP, DOWN = 17, 21, 25
ATTN_NORM, FFN_NORM, Q_NORM, K_NORM = 29, 30, 31, 32
Q_BIAS, K_BIAS, V_BIAS, O_BIAS = 33, 34, 35, 36
GATE_BIAS, UP_BIAS, DOWN_BIAS = 37, 38, 39
#: Index of a full-attention layer within the KV cache.
CACHE_LAYER = 40
Q_GATE_BIAS = 41
# Linear layers: projections, vectors, index within the recurrent state.
LINEAR_QKV, LINEAR_Z, LINEAR_A, LINEAR_B, LINEAR_OUT = 44, 48, 52, 56, 60
CONV, DECAY, DT_BIAS, LINEAR_NORM, STATE_LAYER = 64, 65, 66, 67, 68
#: Gate of the attention's output; address 0 where there is none.
Q_GATE = 72
WIDTH = 96
# The last row of the table: embedding, head, final norm.
EMBEDDING, HEAD, FINAL_NORM = 1, 5, 29
FULL, LINEAR = 0, 1

MATRIX_ROLES = {
    "q": Q,
    "k": K,
    "v": V,
    "o": O,
    "gate": GATE,
    "up": UP,
    "down": DOWN,
    "q_gate": Q_GATE,
    "linear_qkv": LINEAR_QKV,
    "linear_z": LINEAR_Z,
    "linear_a": LINEAR_A,
    "linear_b": LINEAR_B,
    "linear_out": LINEAR_OUT,
}
VECTOR_ROLES = {
    "attn_norm": ATTN_NORM,
    "ffn_norm": FFN_NORM,
    "q_norm": Q_NORM,
    "k_norm": K_NORM,
    "q_bias": Q_BIAS,
    "k_bias": K_BIAS,
    "v_bias": V_BIAS,
    "o_bias": O_BIAS,
    "q_gate_bias": Q_GATE_BIAS,
    "gate_bias": GATE_BIAS,
    "up_bias": UP_BIAS,
    "down_bias": DOWN_BIAS,
    "linear_conv": CONV,
    "linear_decay": DECAY,
    "linear_dt_bias": DT_BIAS,
    "linear_norm": LINEAR_NORM,
}
