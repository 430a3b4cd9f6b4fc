"""CUDA kernel between the projections and attention: norm and rotation of query and key heads, keys and values cached.

A block for each head of each token; a thread for each of its numbers.
"""
# mypy: allow-untyped-defs, allow-untyped-decorators

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from neuron.kernels.cuda import F32, I16, I64, WARP, ZERO, block_sum, cuda, narrow, plain, types, widen


def threads_of(dim: int) -> int:
    return -(-dim // WARP) * WARP


def make(
    dim: int, *, normed: bool, adjacent: bool, bfloat16_in: bool, bfloat16_query: bool, bfloat16_rows: bool
) -> Callable[..., None]:
    """A kernel of threads_of(dim) threads on grid (heads + 2 * kv heads, n). Without `normed`, norms are not read."""
    threads = threads_of(dim)
    load = widen if bfloat16_in else plain
    store_query, store_row = (narrow if bfloat16_query else plain), (narrow if bfloat16_rows else plain)

    def rope(q, k, v, q_norm, k_norm, epsilon, table, index, query, rows):
        """q [n, heads, dim], k, v [n, kv heads, dim] -> query [n, heads, dim] and rows [2, kv heads, positions, dim].

        q_norm, k_norm float32 [dim]; table float32 [n, 2, half]: cosines and sines; index int64 [n]: the rows'
        positions. A position beyond the rows is not written.
        """
        scratch = cuda.shared.array(threads, F32)
        head_values = cuda.shared.array(threads, F32)
        thread, token, head = cuda.threadIdx.x, cuda.blockIdx.y, cuda.blockIdx.x
        heads, kv_heads, half = q.shape[1], k.shape[1], table.shape[2]
        value = ZERO
        if thread < dim:
            if head < heads:
                value = load(q[token, head, thread])
            elif head < heads + kv_heads:
                value = load(k[token, head - heads, thread])
            else:
                value = load(v[token, head - heads - kv_heads, thread])
        if normed and head < heads + kv_heads:
            mean = block_sum(value * value, scratch, thread, threads) / np.float32(dim)
            weight = ZERO
            if thread < dim:
                weight = q_norm[thread] if head < heads else k_norm[thread]
            value = value * (np.float32(1.0) / math.sqrt(mean + epsilon)) * weight
        head_values[thread] = value
        cuda.syncthreads()
        if thread < 2 * half and head < heads + kv_heads:
            if adjacent:
                pair, partner, later = thread // 2, thread ^ 1, thread % 2
            else:
                pair, partner, later = thread % half, (thread + half) % (2 * half), thread // half
            turned = head_values[partner] * table[token, 1, pair]
            value = value * table[token, 0, pair] + (turned if later == 1 else -turned)
        position = index[token]
        if thread < dim:
            if head < heads:
                query[token, head, thread] = store_query(value)
            elif position < rows.shape[2]:
                which = (head - heads) // kv_heads
                rows[which, (head - heads) % kv_heads, position, thread] = store_row(value)

    return rope


def signature(*, bfloat16_in: bool, bfloat16_query: bool, bfloat16_rows: bool) -> Any:
    given, query, rows = ((I16 if narrow else F32) for narrow in (bfloat16_in, bfloat16_query, bfloat16_rows))
    heads, vector = given[:, :, ::1], F32[::1]
    return types.void(
        heads, heads, heads, vector, vector, F32, F32[:, :, ::1], I64[::1], query[:, :, ::1], rows[:, :, :, ::1]
    )
