"""CUDA kernel of the gates."""
# mypy: allow-untyped-defs, allow-untyped-decorators

import math
from typing import Any

import numpy as np

from neuron.kernels.cuda import F32, ONE, cuda, device, types
from neuron.kernels.gdn.gating.naive import SOFTPLUS_LINEAR

THREADS = 128
_LINEAR = np.float32(SOFTPLUS_LINEAR)


@device
def log_decay(a, decay, dt_bias):
    """decay * softplus(a + dt_bias)."""
    x = a + dt_bias
    if x > _LINEAR:
        return decay * x
    return decay * math.log1p(math.exp(x))


@device
def sigmoid(x):
    return ONE / (ONE + math.exp(-x))


def gating(a, b, decay, dt_bias, g, beta):
    """g, beta [n, Hv] of a, b [n, Hv]; one thread for each number."""
    index = cuda.grid(1)
    heads = a.shape[1]
    if index >= a.shape[0] * heads:
        return
    row, head = index // heads, index % heads
    g[row, head] = log_decay(a[row, head], decay[head], dt_bias[head])
    beta[row, head] = sigmoid(b[row, head])


def signature() -> Any:
    matrix, vector = F32[:, ::1], F32[::1]
    return types.void(matrix, matrix, vector, vector, matrix, matrix)
