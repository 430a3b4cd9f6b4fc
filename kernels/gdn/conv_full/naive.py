"""Reference of the causal depthwise convolution with SiLU over many tokens. For tests."""

import numpy as np

from neuron.kernels.gdn.recurrent.naive import Array


def silu(x: Array) -> Array:
    return x / (1.0 + np.exp(-x))


def conv_full(x: Array, weight: Array, ring: Array, position: int) -> tuple[Array, Array]:
    """silu(conv(x)) [T, C] of inputs x [T, C] at `position`.., and the ring after them.

    weight [kernel, C]: the last row meets the newest input. ring [kernel, C]: the input at position p lies in row
    p % kernel; zeros before the first token.
    """
    kernel = len(weight)
    ring = ring.copy()
    out = np.empty(x.shape, dtype=x.dtype)
    for t, row in enumerate(x):
        ring[(position + t) % kernel] = row
        taps = [ring[(position + t + 1 + j) % kernel] for j in range(kernel)]
        out[t] = silu((np.stack(taps) * weight).sum(axis=0))
    return out, ring
