"""CUDA kernel of RMSNorm, a block for each row; what comes from the layer before can be added first."""
# mypy: allow-untyped-defs, allow-untyped-decorators

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from neuron.kernels.cuda import F32, I16, ZERO, block_sum, cuda, narrow, plain, types, widen

THREADS = 256


def make(*, added: bool, bfloat16_added: bool, bfloat16_out: bool) -> Callable[..., None]:
    """A kernel of THREADS threads on grid (n). Without `added`, `more` is not read."""
    load, store = (widen if bfloat16_added else plain), (narrow if bfloat16_out else plain)

    def rms_norm(x, more, weight, epsilon, out):
        """x float32 [n, width] += more [n, width]; out [n, width] = x / rms(x) * weight float32 [width]."""
        scratch = cuda.shared.array(THREADS, F32)
        thread, row = cuda.threadIdx.x, cuda.blockIdx.x
        width = x.shape[1]
        squares = ZERO
        for i in range(thread, width, THREADS):
            value = x[row, i]
            if added:
                value += load(more[row, i])
                x[row, i] = value
            squares += value * value
        mean = block_sum(squares, scratch, thread, THREADS) / np.float32(width)
        factor = np.float32(1.0) / math.sqrt(mean + epsilon)
        for i in range(thread, width, THREADS):
            out[row, i] = store(x[row, i] * factor * weight[i])

    return rms_norm


def signature(*, bfloat16_added: bool, bfloat16_out: bool) -> Any:
    more, out = (I16 if bfloat16_added else F32), (I16 if bfloat16_out else F32)
    return types.void(F32[:, ::1], more[:, ::1], F32[::1], F32, out[:, ::1])
