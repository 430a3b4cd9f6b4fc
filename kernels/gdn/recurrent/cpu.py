"""The gated delta rule token by token, compiled: heads are dealt out to threads. State float32, always."""
# mypy: allow-untyped-defs, allow-untyped-decorators

import math

from neuron.kernels.gdn.vector import delta_rule
from neuron.kernels.jit import compiled, inlined
from neuron.kernels.quant.memory import load_f32
from neuron.kernels.quant.products import dot_row


@inlined
def advance(state, q, k, v, g, beta, key_width, value_width, out):
    """One token of one head, all by address but the log decay g and beta. q is normalised and divided by sqrt(K)."""
    qk = dot_row(0, q, k, key_width)
    delta_rule(state, q, k, v, math.exp(g), beta, qk, key_width, value_width, out)


@compiled
def recurrent(thread, threads, heads, ratio, first, last, stride, q, k, v, g, beta, state, key_width, value_width, out):
    """Tokens first <= t < last of every head.

    float32 by address: q, k [Hk, stride, K], v, out [Hv, stride, V], g, beta [Hv, stride], state [Hv, K, V] in place.
    """
    for h in range(heads * thread // threads, heads * (thread + 1) // threads):
        for t in range(first, last):
            key = ((h // ratio) * stride + t) * key_width * 4
            row = h * stride + t
            advance(
                state + h * key_width * value_width * 4,
                q + key,
                k + key,
                v + row * value_width * 4,
                load_f32(g + row * 4),
                load_f32(beta + row * 4),
                key_width,
                value_width,
                out + row * value_width * 4,
            )
