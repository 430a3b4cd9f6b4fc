"""CUDA kernel of the recurrence: a block owns some columns of one head's state and keeps them in registers.

Thread (column, part) holds K / parts rows of its column; sums over a column cross the parts through shared memory.
"""
# mypy: allow-untyped-defs, allow-untyped-decorators

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from neuron.kernels.cuda import F32, ZERO, cuda, types


def make(key_width: int, columns: int, parts: int) -> Callable[..., None]:
    """A kernel for K = key_width, launched with columns * parts threads on grid (V / columns, Hv)."""
    rows, threads = key_width // parts, columns * parts
    scale = np.float32(key_width**-0.5)

    def recurrent(q, k, v, g, beta, state, out):
        """q, k [n, Hk, K] normalised; v, out [n, Hv, V]; g (log decay), beta [n, Hv]; state [Hv, K, V] in place."""
        query = cuda.shared.array(key_width, F32)
        key = cuda.shared.array(key_width, F32)
        seen = cuda.shared.array((parts, columns), F32)
        read = cuda.shared.array((parts, columns), F32)
        held = cuda.local.array(rows, F32)
        thread, head = cuda.threadIdx.x, cuda.blockIdx.y
        column, part = thread % columns, thread // columns
        place = cuda.blockIdx.x * columns + column
        source = head // (v.shape[1] // k.shape[1])
        first = part * rows
        for r in range(rows):
            held[r] = state[head, first + r, place]
        for t in range(q.shape[0]):
            for i in range(thread, key_width, threads):
                query[i] = q[t, source, i] * scale
                key[i] = k[t, source, i]
            cuda.syncthreads()
            decay = math.exp(g[t, head])
            total = ZERO
            for r in range(rows):
                held[r] *= decay
                total += held[r] * key[first + r]
            seen[part, column] = total
            cuda.syncthreads()
            total = ZERO
            for p in range(parts):
                total += seen[p, column]
            update = beta[t, head] * (v[t, head, place] - total)
            total = ZERO
            for r in range(rows):
                held[r] += key[first + r] * update
                total += held[r] * query[first + r]
            read[part, column] = total
            cuda.syncthreads()
            if part == 0:
                total = ZERO
                for p in range(parts):
                    total += read[p, column]
                out[t, head, place] = total
        for r in range(rows):
            state[head, first + r, place] = held[r]

    return recurrent


def signature() -> Any:
    three, two = F32[:, :, ::1], F32[:, ::1]
    return types.void(three, three, three, two, two, three, three)
