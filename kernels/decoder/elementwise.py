"""Compiled element-wise work of prefill, between the library's matrix products: one pass over rows per function.

Matrices are float32 or bfloat16 ("kind", a GgmlType number), given by address; rows follow each other unless told.
"""
# mypy: allow-untyped-defs, allow-untyped-decorators

from neuron.kernels.attention.step import prepare_head, root_mean_square, write_row
from neuron.kernels.decoder import plan
from neuron.kernels.jit import compiled, inlined
from neuron.kernels.quant.memory import load_i64
from neuron.kernels.quant.products import expand_row_f32, narrow_row
from neuron.kernels.quant.vector import add_to, narrow_f32, scaled_product, silu_product

EMBEDDING, Q_NORM, K_NORM, CACHE_LAYER = plan.EMBEDDING, plan.Q_NORM, plan.K_NORM, plan.CACHE_LAYER
BFLOAT16 = 30


@inlined
def width(kind):
    """Bytes of one element."""
    return 2 if kind == BFLOAT16 else 4


@compiled
def embed(thread, threads, n, tokens, table, shape, x):
    """Embedding rows of tokens int32 [n] to float32 x [n, hidden]."""
    top = table[shape.layers]
    for t in range(n * thread // threads, n * (thread + 1) // threads):
        row = top[EMBEDDING + 1] + tokens[t] * top[EMBEDDING + 2]
        expand_row_f32(top[EMBEDDING], row, x + t * shape.hidden * 4, shape.hidden)


@compiled
def norm(thread, threads, n, x, weight, cols, epsilon, scratch, kind, out, out_row):
    """RMSNorm of float32 x [n, cols] to `out`, rows `out_row` bytes apart. `scratch`: float32 [threads, cols]."""
    mine = scratch + thread * cols * 4
    for t in range(n * thread // threads, n * (thread + 1) // threads):
        row = x + t * cols * 4
        scaled_product(row, weight, root_mean_square(row, cols, epsilon), mine, cols)
        narrow_row(kind, mine, out + t * out_row, cols)


@compiled
def silu(thread, threads, n, gate, up, kind, gate_bias, up_bias, cols, scratch, out, out_row):
    """out = silu(gate + bias) * (up + bias), all [n, cols]. `scratch`: float32 [threads, 2, cols].

    Rows of `out` are `out_row` bytes apart.
    """
    a = scratch + thread * cols * 8
    b = a + cols * 4
    size = cols * width(kind)
    for t in range(n * thread // threads, n * (thread + 1) // threads):
        expand_row_f32(kind, gate + t * size, a, cols)
        expand_row_f32(kind, up + t * size, b, cols)
        if gate_bias != 0:
            add_to(gate_bias, a, cols)
        if up_bias != 0:
            add_to(up_bias, b, cols)
        silu_product(a, b, a, cols)
        narrow_row(kind, a, out + t * out_row, cols)


@compiled
def split_heads(thread, threads, n, asking, q, k, v, layer, rope, positions, cache, shape, scratch, kind, out):
    """Norm and rope of q [asking, heads * dim] to `out` [heads, asking, dim] of `kind`; of k, and v, into the cache.

    q, k, v float32; q of the last `asking` of n tokens. `positions`: where. `scratch`: float32 [threads, dim].
    """
    dim = shape.head_dim
    mine = scratch + thread * dim * 4
    at = cache + layer[CACHE_LAYER] * shape.kv_layer_bytes
    for t in range(n * thread // threads, n * (thread + 1) // threads):
        table = rope + t * shape.rotary_dim * 4
        place = load_i64(positions + 8 * t) * dim * shape.kv_size
        row = t - (n - asking)
        for h in range(shape.heads if row >= 0 else 0):
            narrow_f32(q + (row * shape.heads + h) * dim * 4, mine, dim)
            prepare_head(mine, layer[Q_NORM], table, shape)
            narrow_row(kind, mine, out + (h * asking + row) * dim * width(kind), dim)
        for h in range(shape.kv_heads):
            source = (t * shape.kv_heads + h) * dim * 4
            key = at + h * shape.kv_head_bytes + place
            narrow_f32(k + source, mine, dim)
            prepare_head(mine, layer[K_NORM], table, shape)
            write_row(mine, key, shape)
            write_row(v + source, key + shape.kv_heads * shape.kv_head_bytes, shape)
