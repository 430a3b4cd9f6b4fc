"""A linear layer's step between its projections, for the compiled step: key heads are dealt out to threads."""
# mypy: allow-untyped-defs, allow-untyped-decorators

import math

from neuron.kernels.attention.step import root_mean_square
from neuron.kernels.decoder import plan
from neuron.kernels.gdn.conv_update.cpu import convolve
from neuron.kernels.gdn.gating.cpu import log_decay, stored_head, strength
from neuron.kernels.gdn.recurrent.cpu import advance
from neuron.kernels.gdn.recurrent.naive import L2_EPSILON
from neuron.kernels.jit import inlined
from neuron.kernels.quant.memory import load_f32, load_i64
from neuron.kernels.quant.products import dot_row
from neuron.kernels.quant.vector import scale_by, scaled_product, silu_product

CONV, DECAY, DT_BIAS = plan.CONV, plan.DECAY, plan.DT_BIAS
LINEAR_NORM, STATE_LAYER = plan.LINEAR_NORM, plan.STATE_LAYER


@inlined
def normalise(x, count, factor):
    """x *= factor / sqrt(sum x^2 + epsilon)."""
    scale_by(x, factor / math.sqrt(dot_row(0, x, x, count) + L2_EPSILON), count)


@inlined
def gated_norm(o, z, weight, width, epsilon, out):
    """out = RMSNorm(o) * weight * silu(z)."""
    scaled_product(o, weight, root_mean_square(o, width, epsilon), o, width)
    silu_product(z, o, out, width)


@inlined
def mix_rows(thread, threads, n, layer, shape, b):
    """b.mixed (q, k, v before the convolution), b.z, b.alpha, b.beta of n rows -> b.linear_out; states move on.

    Rows of one sequence are taken in order, by one thread for each key head.
    """
    keys, heads = shape.linear_key_heads, shape.linear_value_heads
    key_width, width = shape.linear_key_dim, shape.linear_value_dim
    channels, ratio = 2 * keys * key_width + heads * width, heads // keys
    q = b.linear_scratch + thread * b.private_linear
    k = q + key_width * 4
    v = k + key_width * 4
    o = v + width * 4
    for head in range(thread, keys, threads):
        for t in range(n):
            position = load_i64(b.positions + 8 * t)
            ring = load_i64(b.states + 8 * t) + layer[STATE_LAYER] * shape.state_layer_bytes
            x = b.mixed + t * channels * 4
            at = head * key_width
            convolve(x, ring, layer[CONV], position, shape.conv_kernel, channels, at, key_width, q)
            at += keys * key_width
            convolve(x, ring, layer[CONV], position, shape.conv_kernel, channels, at, key_width, k)
            normalise(q, key_width, key_width**-0.5)
            normalise(k, key_width, 1.0)
            for member in range(ratio):
                grouped = head * ratio + member
                stored = stored_head(grouped, ratio, keys, shape.tiled_value_heads)
                at = 2 * keys * key_width + stored * width
                convolve(x, ring, layer[CONV], position, shape.conv_kernel, channels, at, width, v)
                gate = (t * heads + stored) * 4
                g = log_decay(
                    load_f32(b.alpha + gate), load_f32(layer[DECAY] + stored * 4), load_f32(layer[DT_BIAS] + stored * 4)
                )
                state = ring + shape.state_ring_bytes + grouped * key_width * width * 4
                advance(state, q, k, v, g, strength(load_f32(b.beta + gate)), key_width, width, o)
                place = (t * heads + stored) * width * 4
                gated_norm(o, b.z + place, layer[LINEAR_NORM], width, shape.epsilon, b.linear_out + place)
