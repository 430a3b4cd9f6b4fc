"""CUDA kernels of the chunked form: what a chunk needs of itself, all chunks at once; then the states, chunk by chunk.

float32 throughout: the solve does not bear less. Tensor cores are left to a later version.
"""
# mypy: allow-untyped-defs, allow-untyped-decorators

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from neuron.kernels.cuda import F32, ONE, ZERO, cuda, types

#: Threads of `prepare`, a square of tiles; of `scan`, columns times groups of rows.
PREPARE_THREADS = 128
SCAN_GROUPS = 8


def make_prepare(key_width: int, chunk: int, step: int) -> Callable[..., None]:
    """A kernel on grid (chunks, Hv). `step`: key columns held in shared memory at once, a divisor of K."""
    threads = PREPARE_THREADS
    scale = np.float32(key_width**-0.5)

    def prepare(q, k, g, beta, total, inverse, mixing):
        """Of q, k [n, Hk, K], g, beta [n, Hv]: running sums of g within chunks, total [n, Hv]; the inverse of the unit
        lower triangle of beta_i exp(c_i - c_j) k_i.k_j, and the lower triangle of exp(c_i - c_j) q_i.k_j / sqrt(K),
        both [Hv, chunks, chunk, chunk]. Rows beyond n count as beta = 0, k = 0, g = 0.
        """
        lower = cuda.shared.array((chunk, chunk), F32)
        solved = cuda.shared.array((chunk, chunk), F32)
        keys = cuda.shared.array((chunk, step), F32)
        queries = cuda.shared.array((chunk, step), F32)
        sums = cuda.shared.array(chunk, F32)
        strength = cuda.shared.array(chunk, F32)
        thread, index, head = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockIdx.y
        start, n = index * chunk, q.shape[0]
        source = head // (g.shape[1] // k.shape[1])
        if thread == 0:
            running = ZERO
            for i in range(chunk):
                if start + i < n:
                    running += g[start + i, head]
                    total[start + i, head] = running
                    strength[i] = beta[start + i, head]
                else:
                    strength[i] = ZERO
                sums[i] = running
        for place in range(thread, chunk * chunk, threads):
            lower[place // chunk, place % chunk] = ZERO
            solved[place // chunk, place % chunk] = ZERO
        for first in range(0, key_width, step):
            cuda.syncthreads()
            for place in range(thread, chunk * step, threads):
                i, c = place // step, place % step
                keys[i, c], queries[i, c] = ZERO, ZERO
                if start + i < n:
                    keys[i, c] = k[start + i, source, first + c]
                    queries[i, c] = q[start + i, source, first + c] * scale
            cuda.syncthreads()
            for place in range(thread, chunk * chunk, threads):
                i, j = place // chunk, place % chunk
                if j <= i:
                    alike, attended = ZERO, ZERO
                    for c in range(step):
                        alike += keys[i, c] * keys[j, c]
                        attended += queries[i, c] * keys[j, c]
                    lower[i, j] += alike
                    solved[i, j] += attended
        cuda.syncthreads()
        for place in range(thread, chunk * chunk, threads):
            i, j = place // chunk, place % chunk
            # Differences above the diagonal are positive and would overflow: they are never taken.
            if j <= i:
                fading = math.exp(sums[i] - sums[j])
                mixing[head, index, i, j] = solved[i, j] * fading
                lower[i, j] *= fading * strength[i]
            else:
                mixing[head, index, i, j] = ZERO
            solved[i, j] = ZERO
        cuda.syncthreads()
        # Forward substitution, a column for each thread. Never powers of the matrix: they explode with like keys.
        if thread < chunk:
            for i in range(thread, chunk):
                value = ZERO
                if i == thread:
                    value = ONE
                for j in range(thread, i):
                    value -= lower[i, j] * solved[j, thread]
                solved[i, thread] = value
        cuda.syncthreads()
        for place in range(thread, chunk * chunk, threads):
            inverse[head, index, place // chunk, place % chunk] = solved[place // chunk, place % chunk]

    return prepare


def make_scan(key_width: int, chunk: int, columns: int) -> Callable[..., None]:
    """A kernel of columns * SCAN_GROUPS threads on grid (V / columns, Hv); the state's columns are in shared memory."""
    groups = SCAN_GROUPS
    threads = columns * groups
    scale = np.float32(key_width**-0.5)

    def scan(q, k, v, beta, total, inverse, mixing, state, out):
        """out [n, Hv, V]; state [Hv, K, V] in place. The other arguments as in `prepare`, v [n, Hv, V]."""
        held = cuda.shared.array((key_width, columns), F32)
        missing = cuda.shared.array((chunk, columns), F32)
        update = cuda.shared.array((chunk, columns), F32)
        thread, head = cuda.threadIdx.x, cuda.blockIdx.y
        column, group = thread % columns, thread // columns
        place = cuda.blockIdx.x * columns + column
        n = q.shape[0]
        source = head // (v.shape[1] // k.shape[1])
        for r in range(group, key_width, groups):
            held[r, column] = state[head, r, place]
        for index in range(inverse.shape[1]):
            start = index * chunk
            count = min(chunk, n - start)
            cuda.syncthreads()
            for i in range(group, count, groups):
                seen = ZERO
                for r in range(key_width):
                    seen += k[start + i, source, r] * held[r, column]
                wanted = v[start + i, head, place] - math.exp(total[start + i, head]) * seen
                missing[i, column] = beta[start + i, head] * wanted
            cuda.syncthreads()
            for i in range(group, count, groups):
                value = ZERO
                for j in range(i + 1):
                    value += inverse[head, index, i, j] * missing[j, column]
                update[i, column] = value
            cuda.syncthreads()
            for i in range(group, count, groups):
                read = ZERO
                for r in range(key_width):
                    read += q[start + i, source, r] * held[r, column]
                value = math.exp(total[start + i, head]) * read * scale
                for j in range(i + 1):
                    value += mixing[head, index, i, j] * update[j, column]
                out[start + i, head, place] = value
            cuda.syncthreads()
            last = total[start + count - 1, head]
            for j in range(group, count, groups):
                update[j, column] *= math.exp(last - total[start + j, head])
            cuda.syncthreads()
            fade = math.exp(last)
            for r in range(group, key_width, groups):
                value = held[r, column] * fade
                for j in range(count):
                    value += k[start + j, source, r] * update[j, column]
                held[r, column] = value
        for r in range(group, key_width, groups):
            state[head, r, place] = held[r, column]

    assert threads % groups == 0
    return scan


def prepare_signature() -> Any:
    three, two, four = F32[:, :, ::1], F32[:, ::1], F32[:, :, :, ::1]
    return types.void(three, three, two, two, two, four, four)


def scan_signature() -> Any:
    three, two, four = F32[:, :, ::1], F32[:, ::1], F32[:, :, :, ::1]
    return types.void(three, three, three, two, two, four, four, three, three)
