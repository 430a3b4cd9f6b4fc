"""Reference of a layer's step between its projections, made of the references of the five operations. For tests."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from neuron.kernels.gdn.conv_full.naive import silu
from neuron.kernels.gdn.conv_update.naive import conv_update
from neuron.kernels.gdn.gating.naive import gating
from neuron.kernels.gdn.recurrent.naive import Array, l2_normalised, recurrent


@dataclass(slots=True)
class LayerParameters:
    """conv [kernel, C]; decay = -exp(A_log), dt_bias [Hv]; norm [V]."""

    conv: Array
    decay: Array
    dt_bias: Array
    norm: Array
    epsilon: float
    key_heads: int
    key_width: int


def gated_norm(o: Array, z: Array, weight: Array, epsilon: float) -> Array:
    """RMSNorm(o) * weight * silu(z) over the last axis. The weight is not zero-centred."""
    normed: Array = o / np.sqrt((o * o).mean(axis=-1, keepdims=True) + epsilon)
    return normed * weight * silu(z)


def decode(
    x: Array,
    z: Array,
    a: Array,
    b: Array,
    layer: LayerParameters,
    rings: Array,
    states: Array,
    slots: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
) -> tuple[Array, Array, Array]:
    """Output [B, Hv V], rings and states [slots, Hv, K, V] after one token of each of B sequences.

    x [B, C]: q, k, v before the convolution; z [B, Hv V]; a, b [B, Hv].
    """
    states = states.copy()
    heads, keys = len(layer.decay), layer.key_heads * layer.key_width
    mixed, rings = conv_update(x, layer.conv, rings, slots, positions)
    g, beta = gating(a, b, layer.decay, layer.dt_bias)
    out = np.empty(z.shape, dtype=z.dtype)
    for row, slot in enumerate(slots):
        q = l2_normalised(mixed[row, :keys].reshape(1, layer.key_heads, -1))
        k = l2_normalised(mixed[row, keys : 2 * keys].reshape(1, layer.key_heads, -1))
        v = mixed[row, 2 * keys :].reshape(1, heads, -1)
        o, states[slot] = recurrent(q, k, v, g[row : row + 1], beta[row : row + 1], states[slot])
        out[row] = gated_norm(o[0], z[row].reshape(heads, -1), layer.norm, layer.epsilon).reshape(-1)
    return out, rings, states
