"""The causal convolution of many tokens of one sequence, compiled: rows are dealt out to threads."""
# mypy: allow-untyped-defs, allow-untyped-decorators

from neuron.kernels.gdn.vector import conv_silu
from neuron.kernels.jit import compiled, inlined
from neuron.kernels.quant.products import expand_row_f32
from neuron.kernels.quant.vector import narrow_f32
from neuron.kernels.threads import barrier


@inlined
def recall(first, x, kind, step, ring, position, kernel, channels, mine):
    """The inputs of the kernel - 1 tokens before row `first` into the private ring `mine`.

    Rows below 0 come from the sequence's ring, which is zero where no token was. x: rows of float `kind`, `step`
    bytes apart.
    """
    for t in range(first - kernel + 1, first):
        place = mine + ((position + t) % kernel) * channels * 4
        if t >= 0:
            expand_row_f32(kind, x + t * step, place, channels)
        else:
            narrow_f32(ring + ((position + t) % kernel) * channels * 4, place, channels)


@inlined
def convolve_row(t, x, kind, step, weight, position, kernel, channels, mine, out):
    """silu(conv) of row t to `out` float32 [channels]; its input goes into the private ring."""
    slot = (position + t) % kernel
    expand_row_f32(kind, x + t * step, mine + slot * channels * 4, channels)
    conv_silu(mine, weight, channels * 4, slot, kernel, out, channels)


@inlined
def remember(n, x, kind, step, ring, position, kernel, channels):
    """The last inputs into the sequence's ring. Every thread must have read it before."""
    for t in range(max(0, n - kernel), n):
        expand_row_f32(kind, x + t * step, ring + ((position + t) % kernel) * channels * 4, channels)


@compiled
def conv_full(thread, threads, state, n, x, kind, ring, weight, position, kernel, channels, scratch, out):
    """silu(conv) float32 [n, channels] of x [n, channels] of float `kind`; the ring is brought up to date.

    `state` is the team's barrier; `scratch` float32 [threads, kernel, channels].
    """
    step = channels * (2 if kind == 30 else 4)
    mine = scratch + thread * kernel * channels * 4
    first, last = n * thread // threads, n * (thread + 1) // threads
    recall(first, x, kind, step, ring, position, kernel, channels, mine)
    for t in range(first, last):
        convolve_row(t, x, kind, step, weight, position, kernel, channels, mine, out + t * channels * 4)
    barrier(state, threads)
    if thread == 0:
        remember(n, x, kind, step, ring, position, kernel, channels)
