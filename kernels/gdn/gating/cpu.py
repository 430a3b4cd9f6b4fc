"""The gates, compiled: scalars for the step, whole prompts for prefill."""
# mypy: allow-untyped-defs, allow-untyped-decorators

import math

from neuron.kernels.gdn.gating.naive import SOFTPLUS_LINEAR
from neuron.kernels.jit import compiled, inlined
from neuron.kernels.quant.memory import load_f32, store_f32


@inlined
def log_decay(a, decay, dt_bias):
    """decay * softplus(a + dt_bias), in float64."""
    x = float(a) + float(dt_bias)
    return float(decay) * (x if x > SOFTPLUS_LINEAR else math.log1p(math.exp(x)))


@inlined
def strength(b):
    """sigmoid(b), in float64."""
    return 1.0 / (1.0 + math.exp(-float(b)))


@inlined
def stored_head(head, ratio, key_heads, tiled):
    """Where the files keep value head `head` of the grouped order. Tiled: head h of a file uses key head h % Hk."""
    return (head % ratio) * key_heads + head // ratio if tiled == 1 else head


@compiled
def gating(thread, threads, n, heads, key_heads, tiled, a, b, decay, dt_bias, stride, g, beta):
    """g and beta float32 [Hv, stride], grouped order, of a and b float32 [n, Hv] in the files' order, by address."""
    ratio = heads // key_heads
    for head in range(heads * thread // threads, heads * (thread + 1) // threads):
        stored = stored_head(head, ratio, key_heads, tiled) * 4
        for t in range(n):
            place = (head * stride + t) * 4
            row = t * heads * 4 + stored
            store_f32(g + place, log_decay(load_f32(a + row), load_f32(decay + stored), load_f32(dt_bias + stored)))
            store_f32(beta + place, strength(load_f32(b + row)))
