"""float32 rows to the GGML superblocks of 256 weights: Q2_K to Q6_K. Called through kernels.quant.quantise.

Layouts follow ggml's block structs; scales are searched as llama.cpp does without an importance matrix. Arguments and
`bad` as in quantise_blocks.
"""
# mypy: allow-untyped-defs, allow-untyped-decorators

import numpy as np

from neuron.kernels.jit import compiled, inlined
from neuron.kernels.quant.halves import half_bits, half_value
from neuron.kernels.quant.quantise_blocks import put_half
from neuron.kernels.quant.quantise_search import CANDIDATES, TINY, fit_offset, fit_signed, fit_signed_by_turns, nearest

_ZERO, _ONE = np.float32(0), np.float32(1)


@inlined
def _scratch():
    """Candidates, weights, group scales, group offsets (float32); small scales, small offsets, levels (int64)."""
    return (
        np.empty((6, CANDIDATES), dtype=np.float32),
        np.empty(32, dtype=np.float32),
        np.empty(16, dtype=np.float32),
        np.empty(16, dtype=np.float32),
        np.empty(16, dtype=np.int64),
        np.empty(16, dtype=np.int64),
        np.empty(256, dtype=np.int64),
    )


@inlined
def _finite(x, at):
    """Whether all 256 weights are numbers, and so small that the search's fourth powers are."""
    for i in range(256):
        if not abs(x[at + i]) < np.float32(1e9):
            return False
    return True


@inlined
def _small(values, groups, top, small):
    """Non-negative floats as integers 0..top; returns the float16 bits of their unit."""
    most = _ZERO
    for g in range(groups):
        most = max(most, values[g])
    inverse = top / most if most > _ZERO else _ZERO
    for g in range(groups):
        small[g] = int(nearest(inverse * values[g], _ZERO, top))
    return half_bits(most / top)


@inlined
def _offset_levels(x, at, groups, top, limit, first, steps, scratch):
    """Levels 0..top of a superblock as d * small scale * level - dmin * small offset; returns the bits of d and dmin.

    Groups of 16 (Q2_K) are weighed by |x| and by absolute error, groups of 32 by |x| + rms(x) and squares.
    """
    s, w, scales, offsets, small, small_offsets, levels = scratch
    size = 256 // groups
    for g in range(groups):
        begin = at + g * size
        total = _ZERO
        for i in range(size):
            total += x[begin + i] * x[begin + i]
        mean = _ZERO if groups == 16 else np.sqrt(total / np.float32(size))
        for i in range(size):
            w[i] = mean + abs(x[begin + i])
        scales[g], offsets[g] = fit_offset(x, begin, size, w, top, first, steps, groups == 16, s)
    d_bits, least_bits = _small(scales, groups, limit, small), _small(offsets, groups, limit, small_offsets)
    d, least = half_value(d_bits), half_value(least_bits)
    for g in range(groups):
        scale, offset = d * np.float32(small[g]), least * np.float32(small_offsets[g])
        inverse = _ONE / scale if scale > _ZERO else _ZERO
        for i in range(g * size, (g + 1) * size):
            levels[i] = int(nearest((x[at + i] + offset) * inverse, _ZERO, top)) if scale > _ZERO else 0
    return d_bits, least_bits


@inlined
def _signed_levels(x, at, half, limit, by_turns, scratch):
    """Levels -half..half - 1 of a superblock as d * small scale * level; returns the bits of d.

    Small scales are -limit..limit - 1; the one of the largest size is -limit.
    """
    s, scales, small, levels = scratch[0], scratch[2], scratch[4], scratch[6]
    most = _ZERO
    for g in range(16):
        begin = at + 16 * g
        scales[g] = fit_signed_by_turns(x, begin, 16, half, s) if by_turns else fit_signed(x, begin, 16, half, s)
        if abs(scales[g]) > abs(most):
            most = scales[g]
    empty = abs(most) < TINY
    inverse = _ZERO if empty else -limit / most
    d_bits = half_bits(_ZERO if empty else _ONE / inverse)
    d = half_value(d_bits)
    for g in range(16):
        small[g] = int(nearest(inverse * scales[g], -limit, limit - _ONE))
        scale = d * np.float32(small[g])
        for i in range(16 * g, 16 * g + 16):
            levels[i] = int(nearest(x[at + i] / scale, -half, half - _ONE)) if scale != _ZERO else 0
    return d_bits


@inlined
def _put_pairs_of_bits(row, at, levels):
    """Two low bits of 256 levels: each byte holds places i, i + 32, i + 64 and i + 96 of a half."""
    for half in range(2):
        for i in range(32):
            bits = 0
            for quarter in range(4):
                bits |= (levels[128 * half + 32 * quarter + i] & 3) << (2 * quarter)
            row[at + 32 * half + i] = bits


@inlined
def _put_nibbles(row, at, levels):
    for pair in range(4):
        for i in range(32):
            row[at + 32 * pair + i] = (levels[64 * pair + i] & 15) | ((levels[64 * pair + 32 + i] & 15) << 4)


@inlined
def _put_one_bit(row, at, levels, bit):
    """Bit number `bit` of all levels: byte i holds places i, i + 32, ..., i + 224."""
    for i in range(32):
        bits = 0
        for g in range(8):
            bits |= ((levels[32 * g + i] >> bit) & 1) << g
        row[at + i] = bits


@inlined
def _put_six_bit_pairs(row, at, small, small_offsets):
    """Eight scales and eight offsets of 6 bits in 12 bytes."""
    for g in range(4):
        row[at + g] = small[g] | ((small[g + 4] >> 4) << 6)
        row[at + 4 + g] = small_offsets[g] | ((small_offsets[g + 4] >> 4) << 6)
        row[at + 8 + g] = (small[g + 4] & 15) | ((small_offsets[g + 4] & 15) << 4)


@compiled
def quantise_q2_k(thread, threads, x, out, bad):
    rows, cols = x.shape
    scratch = _scratch()
    small, small_offsets, levels = scratch[4], scratch[5], scratch[6]
    for r in range(rows * thread // threads, rows * (thread + 1) // threads):
        for block in range(cols // 256):
            at = 84 * block
            d, least = _offset_levels(x[r], 256 * block, 16, np.float32(3), np.float32(15), -0.5, 15, scratch)
            for g in range(16):
                out[r, at + g] = small[g] | (small_offsets[g] << 4)
            _put_pairs_of_bits(out[r], at + 16, levels)
            broken = put_half(out[r], at + 80, d) | put_half(out[r], at + 82, least)
            bad[thread] += broken if _finite(x[r], 256 * block) else 1


@compiled
def quantise_q3_k(thread, threads, x, out, bad):
    rows, cols = x.shape
    scratch = _scratch()
    small, levels = scratch[4], scratch[6]
    for r in range(rows * thread // threads, rows * (thread + 1) // threads):
        for block in range(cols // 256):
            at = 110 * block
            d = _signed_levels(x[r], 256 * block, np.float32(4), np.float32(32), True, scratch)
            for i in range(256):
                levels[i] += 4
            _put_one_bit(out[r], at, levels, 2)
            _put_pairs_of_bits(out[r], at + 32, levels)
            for g in range(8):
                out[r, at + 96 + g] = ((small[g] + 32) & 15) | (((small[g + 8] + 32) & 15) << 4)
            for g in range(4):
                bits = 0
                for part in range(4):
                    bits |= ((small[g + 4 * part] + 32) >> 4) << (2 * part)
                out[r, at + 104 + g] = bits
            broken = put_half(out[r], at + 108, d)
            bad[thread] += broken if _finite(x[r], 256 * block) else 1


@compiled
def quantise_offset(thread, threads, x, out, bad, size, top, first, steps):
    """Q4_K and Q5_K, `size` bytes a superblock: levels 0..`top`, 15 or 31. `first`, `steps`: see fit_offset."""
    rows, cols = x.shape
    scratch = _scratch()
    small, small_offsets, levels = scratch[4], scratch[5], scratch[6]
    for r in range(rows * thread // threads, rows * (thread + 1) // threads):
        for block in range(cols // 256):
            at = size * block
            d, least = _offset_levels(x[r], 256 * block, 8, np.float32(top), np.float32(63), first, steps, scratch)
            broken = put_half(out[r], at, d) | put_half(out[r], at + 2, least)
            _put_six_bit_pairs(out[r], at + 4, small, small_offsets)
            if top == 31:
                _put_one_bit(out[r], at + 16, levels, 4)
            _put_nibbles(out[r], at + size - 128, levels)
            bad[thread] += broken if _finite(x[r], 256 * block) else 1


@compiled
def quantise_q6_k(thread, threads, x, out, bad):
    rows, cols = x.shape
    scratch = _scratch()
    small, levels = scratch[4], scratch[6]
    for r in range(rows * thread // threads, rows * (thread + 1) // threads):
        for block in range(cols // 256):
            at = 210 * block
            d = _signed_levels(x[r], 256 * block, np.float32(32), np.float32(128), False, scratch)
            for i in range(256):
                levels[i] += 32
            for half in range(2):
                for i in range(32):
                    a, b = levels[128 * half + i], levels[128 * half + 32 + i]
                    c, e = levels[128 * half + 64 + i], levels[128 * half + 96 + i]
                    out[r, at + 64 * half + i] = (a & 15) | ((c & 15) << 4)
                    out[r, at + 64 * half + 32 + i] = (b & 15) | ((e & 15) << 4)
                    high = (a >> 4) | ((b >> 4) << 2) | ((c >> 4) << 4) | ((e >> 4) << 6)
                    out[r, at + 128 + 32 * half + i] = high
            for g in range(16):
                out[r, at + 192 + g] = small[g] & 255
            broken = put_half(out[r], at + 208, d)
            bad[thread] += broken if _finite(x[r], 256 * block) else 1
