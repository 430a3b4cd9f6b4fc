"""CUDA kernel of the convolution of one token per sequence."""
# mypy: allow-untyped-defs, allow-untyped-decorators

from typing import Any

from neuron.kernels.cuda import F32, I64, cuda, device, types
from neuron.kernels.gdn.gating.cuda import sigmoid

THREADS = 128


@device
def convolved(value, ring, newest, weight, channel):
    """silu(conv) of one channel whose newest input is `value`. The ring's row `newest` is not read."""
    taps = weight.shape[0]
    total = value * weight[taps - 1, channel]
    for j in range(taps - 1):
        total += ring[(newest + 1 + j) % taps, channel] * weight[j, channel]
    return total * sigmoid(total)


def conv_update(x, weight, rings, slots, positions, out):
    """out [B, C] of x [B, C]; rings [slots, kernel, C]. Grid (channels / THREADS, B)."""
    channel, row = cuda.grid(1), cuda.blockIdx.y
    if channel >= x.shape[1]:
        return
    ring = rings[slots[row]]
    newest = positions[row] % weight.shape[0]
    out[row, channel] = convolved(x[row, channel], ring, newest, weight, channel)
    ring[newest, channel] = x[row, channel]


def signature() -> Any:
    return types.void(F32[:, ::1], F32[:, ::1], F32[:, :, ::1], I64[::1], I64[::1], F32[:, ::1])
