"""The causal convolution of single tokens, compiled."""
# mypy: allow-untyped-defs, allow-untyped-decorators

from neuron.kernels.gdn.vector import conv_silu
from neuron.kernels.jit import compiled, inlined
from neuron.kernels.quant.memory import load_i64
from neuron.kernels.quant.vector import narrow_f32


@inlined
def convolve(x, ring, weight, position, kernel, channels, first, count, out):
    """silu(conv) of channels first.. of one token to `out` float32 [count]; its input goes into the ring.

    float32 by address: x [channels], ring and weight [kernel, channels].
    """
    slot = position % kernel
    narrow_f32(x + first * 4, ring + (slot * channels + first) * 4, count)
    conv_silu(ring + first * 4, weight + first * 4, channels * 4, slot, kernel, out, count)


@compiled
def conv_update(thread, threads, n, x, rings, weight, positions, kernel, channels, out):
    """One token of n sequences: x, out float32 [n, channels]; int64 [n] addresses of rings, and positions."""
    first, last = channels * thread // threads, channels * (thread + 1) // threads
    for t in range(n):
        row = t * channels * 4
        ring, position = load_i64(rings + 8 * t), load_i64(positions + 8 * t)
        convolve(x + row, ring, weight, position, kernel, channels, first, last - first, out + row + first * 4)
