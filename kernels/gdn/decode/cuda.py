"""CUDA kernel of a layer's whole step between its projections: one launch, one block per head and sequence.

Convolution, SiLU, L2 norms, gates, delta rule and gated norm. The state stays in registers between its one read and
its one write. Rings hold as many inputs as the convolution has taps, so that the row that one block writes is read by
no other.
"""
# mypy: allow-untyped-defs, allow-untyped-decorators

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from neuron.kernels.cuda import F32, I16, I64, ZERO, block_sum, cuda, narrow, plain, types, widen
from neuron.kernels.gdn.conv_update.cuda import convolved
from neuron.kernels.gdn.gating.cuda import log_decay, sigmoid
from neuron.kernels.gdn.recurrent.naive import L2_EPSILON

#: Of a multiprocessor: a block's share of the state fills most of its registers.
BLOCKS = 1


def make(key_width: int, value_width: int, parts: int, *, bfloat16: bool) -> Callable[..., None]:
    """A kernel of value_width * parts threads (whole warps) on grid (Hv, B), for projections in float32 or bfloat16.

    To be compiled for BLOCKS.
    """
    rows, threads, inputs = key_width // parts, value_width * parts, 2 * key_width + value_width
    scale, epsilon = np.float32(key_width**-0.5), np.float32(L2_EPSILON)
    load, store = (widen, narrow) if bfloat16 else (plain, plain)

    def decode(x, z, a, b, conv, decay, dt_bias, norm, norm_epsilon, tiled, rings, states, slots, positions, out):
        """x [B, C]; z, out [B, Hv V]; a, b float32 [B, Hv]; conv [kernel, C]; decay, dt_bias [Hv]; norm [V];
        rings [slots, kernel, C] and states [slots, Hv, K, V] in place; slots, positions int64 [B].

        x, z, a, b, decay, dt_bias and out are in the files' order of value heads, which is tiled or grouped.
        """
        mixed = cuda.shared.array(inputs, F32)
        seen = cuda.shared.array((parts, value_width), F32)
        scratch = cuda.shared.array(threads, F32)
        held = cuda.local.array(rows, F32)
        thread, head, row = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockIdx.y
        slot, newest = slots[row], positions[row] % conv.shape[0]
        heads = decay.shape[0]
        keys = (x.shape[1] - heads * value_width) // 2
        key_heads = keys // key_width
        ratio = heads // key_heads
        source, stored = head // ratio, head
        if tiled:
            stored = (head % ratio) * key_heads + source
        ring, state = rings[slot], states[slot]
        for i in range(thread, inputs, threads):
            channel = source * key_width + i
            if i >= 2 * key_width:
                channel = 2 * keys + stored * value_width + i - 2 * key_width
            elif i >= key_width:
                channel += keys - key_width
            value = load(x[row, channel])
            mixed[i] = convolved(value, ring, newest, conv, channel)
            # The value heads of one key head share its channels; the first of them writes.
            if i >= 2 * key_width or head % ratio == 0:
                ring[newest, channel] = value
        column, part = thread % value_width, thread // value_width
        first = part * rows
        for r in range(rows):
            held[r] = state[head, first + r, column]
        cuda.syncthreads()
        squares, key_squares = ZERO, ZERO
        for i in range(thread, key_width, threads):
            squares += mixed[i] * mixed[i]
            key_squares += mixed[key_width + i] * mixed[key_width + i]
        query_factor = scale / math.sqrt(block_sum(squares, scratch, thread, threads) + epsilon)
        key_factor = np.float32(1.0) / math.sqrt(block_sum(key_squares, scratch, thread, threads) + epsilon)
        fade = math.exp(log_decay(a[row, stored], decay[stored], dt_bias[stored]))
        total = ZERO
        for r in range(rows):
            held[r] *= fade
            total += held[r] * (mixed[key_width + first + r] * key_factor)
        seen[part, column] = total
        cuda.syncthreads()
        total = ZERO
        for p in range(parts):
            total += seen[p, column]
        update = sigmoid(b[row, stored]) * (mixed[2 * key_width + column] - total)
        total = ZERO
        for r in range(rows):
            held[r] += (mixed[key_width + first + r] * key_factor) * update
            total += held[r] * (mixed[first + r] * query_factor)
            state[head, first + r, column] = held[r]
        cuda.syncthreads()
        seen[part, column] = total
        cuda.syncthreads()
        result, square = ZERO, ZERO
        if part == 0:
            for p in range(parts):
                result += seen[p, column]
            square = result * result
        mean = block_sum(square, scratch, thread, threads) / np.float32(value_width)
        if part == 0:
            place = stored * value_width + column
            gate = load(z[row, place])
            normed = result / math.sqrt(mean + norm_epsilon) * norm[column]
            out[row, place] = store(normed * (gate * sigmoid(gate)))

    return decode


def signature(*, bfloat16: bool) -> Any:
    kind = I16 if bfloat16 else F32
    matrix, vector = F32[:, ::1], F32[::1]
    projected = kind[:, ::1]
    states = F32[:, :, :, ::1]
    whole = (projected, projected, matrix, matrix, matrix, vector, vector, vector, F32, types.boolean)
    return types.void(*whole, F32[:, :, ::1], states, I64[::1], I64[::1], projected)
