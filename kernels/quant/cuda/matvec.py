"""CUDA kernel of a product with few rows of activations: a block of threads walks some rows of the matrix together.

Weights are unpacked in registers and met by activations that stay in the first-level cache; nothing is staged.
"""
# mypy: allow-untyped-defs, allow-untyped-decorators

from collections.abc import Callable
from typing import Any

from neuron.kernels.cuda import (
    F16,
    F32,
    I16,
    I32,
    ZERO,
    block_sums,
    cuda,
    device,
    high_half,
    low_half,
    narrow,
    plain,
    sum_parts,
    types,
)
from neuron.kernels.quant.cuda.unpack import NOT_NEGATIVE, UNIT, Layout

#: Most rows of activations in one block of threads.
MOST_BATCH = 8


@device
def _add_floats(total, first, second, x, row, place):
    return total + first * x[row, place] + second * x[row, place + 1]


@device
def _add_bfloat16(total, first, second, x, row, place):
    pair = x[row, place >> 1]
    return total + first * low_half(pair) + second * high_half(pair)


def make(
    layout: Layout, rows: int, batch: int, threads: int, *, bfloat16_in: bool, bfloat16_out: bool
) -> Callable[..., None]:
    """A kernel of `threads` threads (whole warps) on grid (ceil(matrix rows / rows) * ceil(n / batch)).

    A `batch` below MOST_BATCH is n itself, 1 or 2: each number is a kernel to be compiled.
    `rows` of the matrix and `batch` of the activations belong to a block; what exceeds either is read but not kept.
    Neighbouring blocks share rows of the matrix, which then come from the second-level cache.
    """
    unpack, run, stride, apart, region = layout.unpack, layout.run, layout.stride, layout.apart, layout.region
    parts, sums = sum_parts(threads), rows * batch
    store, add = (narrow if bfloat16_out else plain), (_add_bfloat16 if bfloat16_in else _add_floats)
    unit_words = UNIT // 2 if bfloat16_in else UNIT

    def multiply(words, halves, x, out):
        """out [n, matrix rows] of x [n, cols] float32, or its bfloat16 values two to an int32.

        words and halves: the same rows of blocks, as `unpack` wants them.
        """
        scratch = cuda.shared.array((sums, parts), F32)
        totals = cuda.local.array(sums, F32)
        weights = cuda.local.array(UNIT, F32)
        thread = cuda.threadIdx.x
        first, first_x = cuda.blockIdx.x * rows, 0
        if batch == MOST_BATCH:
            groups = (x.shape[0] + batch - 1) // batch
            first, first_x = cuda.blockIdx.x // groups * rows, cuda.blockIdx.x % groups * batch
        for i in range(sums):
            totals[i] = ZERO
        for index in range(thread, x.shape[1] // unit_words, threads):
            unit = index & NOT_NEGATIVE
            base = unit // apart * region + unit % apart * run
            for r in range(rows):
                unpack(words, halves, min(first + r, words.shape[0] - 1) & NOT_NEGATIVE, unit, weights)
                for b in range(batch):
                    row, total = min(first_x + b, x.shape[0] - 1) & NOT_NEGATIVE, totals[r * batch + b]
                    for i in range(0, UNIT, 2):
                        total = add(total, weights[i], weights[i + 1], x, row, base + i // run * stride + i % run)
                    totals[r * batch + b] = total
        block_sums(totals, sums, scratch, thread)
        for i in range(thread, sums, threads):
            row, column = first_x + i % batch, first + i // batch
            if row < out.shape[0] and column < out.shape[1]:
                total = ZERO
                for p in range(parts):
                    total += scratch[i, p]
                out[row, column] = store(total)

    return multiply


def signature(layout: Layout, *, bfloat16_in: bool, bfloat16_out: bool) -> Any:
    words, x = (I32 if layout.wide else I16), (I32 if bfloat16_in else F32)
    return types.void(words[:, ::1], F16[:, ::1], x[:, ::1], (I16 if bfloat16_out else F32)[:, ::1])
