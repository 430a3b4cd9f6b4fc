"""Reference of the heads' norm and rotation. For tests."""

import numpy as np

from neuron.kernels.fused.rms_norm.naive import Array, rms_norm


def rotated(x: Array, rope: Array, adjacent: bool) -> Array:
    """x [n, heads, dim], its first 2 * half numbers turned by cosines and sines rope [n, 2, half].

    Partners are `half` apart, or neighbours if `adjacent`.
    """
    half = rope.shape[-1]
    out = x.copy()
    cosine, sine = rope[:, None, 0], rope[:, None, 1]
    first = slice(0, 2 * half, 2) if adjacent else slice(0, half)
    second = slice(1, 2 * half, 2) if adjacent else slice(half, 2 * half)
    out[..., first] = x[..., first] * cosine - x[..., second] * sine
    out[..., second] = x[..., second] * cosine + x[..., first] * sine
    return out


def head_norm_rope(x: Array, norm: Array | None, epsilon: float, rope: Array, adjacent: bool) -> Array:
    """x [n, heads, dim]; norm [dim] or None."""
    return rotated(x if norm is None else rms_norm(x, norm, epsilon), np.asarray(rope, dtype=x.dtype), adjacent)
