"""Scales of small groups of weights by search, as llama.cpp's K-quants choose them. For kernels.quant.quantise_supers.

Candidates are tried side by side: sums run over the candidates' lanes, so they need no reordering of float additions.
"""
# mypy: allow-untyped-defs, allow-untyped-decorators

import numpy as np

from neuron.kernels.jit import inlined

_ZERO, _ONE = np.float32(0), np.float32(1)
#: Adding and taking away 1.5 * 2^23 rounds a float32 below 2^22 to an integer, to even.
_ROUND = np.float32(12582912.0)
#: A group below this holds nothing.
TINY = np.float32(1e-15)
#: Columns of the candidate scratch: more than any search tries.
CANDIDATES = 24


@inlined
def nearest(value, low, high):
    """`value` rounded to even and cut to low..high, all float32. NaN becomes low."""
    inside = value if value > low else low
    inside = inside if inside < high else high
    return (inside + _ROUND) - _ROUND


@inlined
def fit_offset(x, at, size, w, top, first, steps, absolute, s):
    """(scale >= 0, offset >= 0) that make sum w * |scale * level - offset - x| (absolute) or its square least.

    Levels 0..top. Starts from the range of x, then tries `steps` + 1 finer or coarser grids, 0.1 level apart from
    `first` on, each with the scale and offset of least weighted squares for its levels. s: float32 [6, CANDIDATES].
    """
    low, high, sum_w, sum_x = x[at], x[at], _ZERO, _ZERO
    for i in range(size):
        value = x[at + i]
        low, high = min(low, value), max(high, value)
        sum_w += w[i]
        sum_x += w[i] * value
    low = min(low, _ZERO)
    span = high - low
    if not span > _ZERO:
        return _ZERO, -low
    inverse, sum_l, sum_l2, sum_xl, scale, least = s[0], s[1], s[2], s[3], s[4], s[5]
    count = steps + 2
    for c in range(count):
        shift = _ZERO if c == 0 else np.float32(first) + np.float32(0.1) * np.float32(c - 1)
        inverse[c] = (top + shift) / span
        sum_l[c] = sum_l2[c] = sum_xl[c] = _ZERO
    for i in range(size):
        above, wi, wx = x[at + i] - low, w[i], w[i] * x[at + i]
        for c in range(count):
            level = nearest(inverse[c] * above, _ZERO, top)
            sum_l[c] += wi * level
            sum_l2[c] += wi * level * level
            sum_xl[c] += wx * level
    scale[0], least[0] = span / top, low
    for c in range(1, count):
        scale[c], least[c] = _squares(sum_w, sum_x, sum_l[c], sum_l2[c], sum_xl[c], span / top, low)
    best = _least_error(x, at, size, w, top, low, count, absolute, inverse, scale, least, sum_l)
    return scale[best], -least[best]


@inlined
def _squares(sum_w, sum_x, sum_l, sum_l2, sum_xl, scale, least):
    """Weighted least squares of x = scale * level + least with least <= 0; the given pair where there is none."""
    determinant = sum_w * sum_l2 - sum_l * sum_l
    if not determinant > _ZERO:
        return scale, least
    found = (sum_w * sum_xl - sum_x * sum_l) / determinant
    offset = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
    if offset > _ZERO:
        return sum_xl / sum_l2, _ZERO
    return found, offset


@inlined
def _least_error(x, at, size, w, top, low, count, absolute, inverse, scale, least, error):
    for c in range(count):
        error[c] = _ZERO
    for i in range(size):
        value, wi = x[at + i], w[i]
        for c in range(count):
            level = nearest(inverse[c] * (value - low), _ZERO, top)
            off = scale[c] * level + least[c] - value
            error[c] += wi * (abs(off) if absolute else off * off)
    best = 0
    for c in range(1, count):
        if error[c] < error[best]:
            best = c
    return best


@inlined
def fit_signed(x, at, size, half, s):
    """The scale that makes the sum of x^2 * (scale * level - x)^2 least, levels -half..half - 1 (Q6_K).

    Tries grids of half - 0.9 .. half + 0.9 levels for the weight of the largest size. 0 for an empty group.
    """
    peak = _peak(x, at, size)
    if abs(peak) < TINY:
        return _ZERO
    inverse, sum_l2, sum_xl = s[0], s[2], s[3]
    for c in range(19):
        shift = np.float32(0.1) * np.float32(0 if c == 0 else (c - 10 if c <= 9 else c - 9))
        inverse[c] = -(half + shift) / peak
        sum_l2[c] = sum_xl[c] = _ZERO
    for i in range(size):
        value = x[at + i]
        wi = value * value
        for c in range(19):
            level = nearest(inverse[c] * value, -half, half - _ONE)
            sum_xl[c] += wi * value * level
            sum_l2[c] += wi * level * level
    best = 0
    for c in range(1, 19):
        if sum_l2[c] > _ZERO and sum_xl[c] * sum_xl[c] * sum_l2[best] > sum_xl[best] * sum_xl[best] * sum_l2[c]:
            best = c
    return sum_xl[best] / sum_l2[best] if sum_l2[best] > _ZERO else _ZERO


@inlined
def fit_signed_by_turns(x, at, size, half, s):
    """The same for Q3_K: one grid, then up to five rounds in which each level moves to where it helps most."""
    peak = _peak(x, at, size)
    if abs(peak) < TINY:
        return _ZERO
    levels = s[0]
    sum_l2 = sum_xl = _ZERO
    for i in range(size):
        value = x[at + i]
        levels[i] = nearest(-half / peak * value, -half, half - _ONE)
        sum_xl += value * value * value * levels[i]
        sum_l2 += value * value * levels[i] * levels[i]
    for _ in range(5):
        changed = False
        for i in range(size):
            value = x[at + i]
            wi = value * value
            xl = sum_xl - wi * value * levels[i]
            l2 = sum_l2 - wi * levels[i] * levels[i]
            if not xl > _ZERO:
                continue
            level = nearest(value * l2 / xl, -half, half - _ONE)
            if level == levels[i]:
                continue
            xl += wi * value * level
            l2 += wi * level * level
            if l2 > _ZERO and xl * xl * sum_l2 > sum_xl * sum_xl * l2:
                levels[i], sum_xl, sum_l2 = level, xl, l2
                changed = True
        if not changed:
            break
    return sum_xl / sum_l2 if sum_l2 > _ZERO else _ZERO


@inlined
def _peak(x, at, size):
    """The weight of the largest size."""
    peak = _ZERO
    for i in range(size):
        if abs(x[at + i]) > abs(peak):
            peak = x[at + i]
    return peak
