"""CUDA kernels of the convolution of many tokens: the outputs, then, in a launch of its own, the ring.

Two launches, because blocks of the first still read what the second overwrites.
"""
# mypy: allow-untyped-defs, allow-untyped-decorators

from typing import Any

from neuron.kernels.cuda import F32, I64, ZERO, cuda, types
from neuron.kernels.gdn.gating.cuda import sigmoid

THREADS = 128


def conv_full(x, weight, ring, position, out):
    """out [n, C] of x [n, C] at `position`; ring [kernel, C]. Grid (channels / THREADS, n)."""
    channel, row = cuda.grid(1), cuda.blockIdx.y
    if channel >= x.shape[1]:
        return
    taps = weight.shape[0]
    total = ZERO
    for j in range(taps):
        source = row - taps + 1 + j
        if source >= 0:
            total += x[source, channel] * weight[j, channel]
        else:
            total += ring[(position + source) % taps, channel] * weight[j, channel]
    out[row, channel] = total * sigmoid(total)


def remember(x, position, ring):
    """The last inputs into the ring. Grid (channels / THREADS)."""
    channel = cuda.grid(1)
    if channel >= x.shape[1]:
        return
    for row in range(max(0, x.shape[0] - ring.shape[0]), x.shape[0]):
        ring[(position + row) % ring.shape[0], channel] = x[row, channel]


def signature() -> Any:
    return types.void(F32[:, ::1], F32[:, ::1], F32[:, ::1], I64, F32[:, ::1])


def remember_signature() -> Any:
    return types.void(F32[:, ::1], I64, F32[:, ::1])
