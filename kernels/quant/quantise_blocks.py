"""float32 rows to the GGML blocks of 32 weights: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0. Called through kernels.quant.quantise.

Levels, scales and roundings are those of the `gguf` package, so that both make the same bytes. All functions take
(thread, threads, x float32 [rows, cols], out uint8 [rows, row bytes], bad int64 [threads]), then what tells types
apart, and do one thread's share of the rows; `bad` counts blocks whose weights are not finite or too large for a
float16 scale.
"""
# mypy: allow-untyped-defs, allow-untyped-decorators

import numpy as np

from neuron.kernels.jit import compiled, inlined
from neuron.kernels.quant.halves import half_bits

_ZERO, _ONE, _HALF = np.float32(0), np.float32(1), np.float32(0.5)
_INFINITE = 0x7C00


@inlined
def put_half(row, at, bits):
    """Write float16 bits at byte `at`; returns 1 when they are no finite number."""
    row[at] = bits & 255
    row[at + 1] = bits >> 8
    return 1 if (bits & _INFINITE) == _INFINITE else 0


@inlined
def _inverse(d):
    """1 / d, 0 for a scale too small to have one."""
    if d == _ZERO:
        return _ZERO
    inverse = _ONE / d
    return inverse if abs(inverse) < np.float32(np.inf) else _ZERO


@inlined
def _level(value, top):
    """`value` cut to an integer 0..top (NaN: 0)."""
    if not value > _ZERO:
        return 0
    return int(value) if value < np.float32(top) else top


@inlined
def _signed_levels(x, at, middle, levels):
    """The scale of 32 weights as level - middle: the weight of the largest size becomes level 0."""
    peak, size = _ZERO, _ZERO
    bad = False
    for i in range(32):
        a = abs(x[at + i])
        bad |= not a < np.float32(np.inf)
        if a > size:
            size, peak = a, x[at + i]
    d = peak / np.float32(-middle)
    inverse, shift = _inverse(d), np.float32(middle) + _HALF
    for i in range(32):
        levels[i] = _level(x[at + i] * inverse + shift, 2 * middle - 1)
    return np.float32(np.nan) if bad else d


@inlined
def _offset_levels(x, at, top, levels):
    """(scale, least) of 32 weights as level * scale + least."""
    least, most = x[at], x[at]
    bad = False
    for i in range(32):
        value = x[at + i]
        bad |= not abs(value) < np.float32(np.inf)
        least, most = min(least, value), max(most, value)
    d = (most - least) / np.float32(top)
    inverse = _inverse(d)
    for i in range(32):
        levels[i] = _level((x[at + i] - least) * inverse + _HALF, top)
    return np.float32(np.nan) if bad else d, least


@inlined
def _put_nibbles(row, at, levels):
    for i in range(16):
        row[at + i] = (levels[i] & 15) | ((levels[i + 16] & 15) << 4)


@inlined
def _put_fifth_bits(row, at, levels):
    for byte in range(4):
        bits = 0
        for i in range(8):
            bits |= (levels[8 * byte + i] >> 4) << i
        row[at + byte] = bits


@compiled
def quantise_signed(thread, threads, x, out, bad, size, middle):
    """Q4_0 and Q5_0, `size` bytes a block: levels less `middle`, 8 or 16."""
    rows, cols = x.shape
    levels = np.empty(32, dtype=np.int64)
    for r in range(rows * thread // threads, rows * (thread + 1) // threads):
        for block in range(cols // 32):
            at = size * block
            d = _signed_levels(x[r], 32 * block, middle, levels)
            bad[thread] += put_half(out[r], at, half_bits(d))
            if middle == 16:
                _put_fifth_bits(out[r], at + 2, levels)
            _put_nibbles(out[r], at + size - 16, levels)


@compiled
def quantise_offset(thread, threads, x, out, bad, size, top):
    """Q4_1 and Q5_1, `size` bytes a block: levels 0..`top`, 15 or 31, above a least value."""
    rows, cols = x.shape
    levels = np.empty(32, dtype=np.int64)
    for r in range(rows * thread // threads, rows * (thread + 1) // threads):
        for block in range(cols // 32):
            at = size * block
            d, least = _offset_levels(x[r], 32 * block, top, levels)
            bad[thread] += put_half(out[r], at, half_bits(d)) | put_half(out[r], at + 2, half_bits(least))
            if top == 31:
                _put_fifth_bits(out[r], at + 4, levels)
            _put_nibbles(out[r], at + size - 16, levels)


@compiled
def quantise_q8_0(thread, threads, x, out, bad):
    rows, cols = x.shape
    for r in range(rows * thread // threads, rows * (thread + 1) // threads):
        for block in range(cols // 32):
            size, broken = _ZERO, False
            for i in range(32):
                a = abs(x[r, 32 * block + i])
                broken |= not a < np.float32(np.inf)
                size = max(size, a)
            d = np.float32(np.nan) if broken else size / np.float32(127)
            bad[thread] += put_half(out[r], 34 * block, half_bits(d))
            inverse = _inverse(d)
            for i in range(32):
                # Halves go away from zero.
                value = x[r, 32 * block + i] * inverse
                floor = _level(abs(value), 127)
                rest = abs(value) - np.float32(floor)
                whole = _level(np.float32(floor) + np.floor(rest + rest), 127)
                out[r, 34 * block + 2 + i] = (whole if value > _ZERO else -whole) & 255
