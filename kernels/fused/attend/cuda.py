"""CUDA kernels of attention of single tokens: parts over runs of positions, then their combination.

The softmax is taken over tiles (https://arxiv.org/abs/2205.14135); all query heads that share keys and values meet
them in one block, so that a row of the cache is read once. How many positions there are is read on the device.
"""
# mypy: allow-untyped-defs, allow-untyped-decorators

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuron.kernels.cuda import (
    F32,
    I16,
    I32,
    I64,
    WARP,
    ZERO,
    cuda,
    device,
    group_sum,
    high_half,
    low_half,
    narrow,
    plain,
    types,
    widen,
)

#: Query numbers that a thread keeps in registers: wanted, and at most.
_WANTED_HELD, _MOST_HELD = 64, 96
#: Neighbours that read a row of keys together at least: a sector of memory, 32 bytes of bfloat16 pairs.
_LEAST_LANES = 8
#: Masks what is never negative, so that the compiler knows it too.
_NOT_NEGATIVE = 0x7FFFFFFF
_LOWEST = np.float32(-math.inf)


@dataclass(frozen=True, slots=True)
class Plan:
    """`lanes` threads share one position's score; `tile` positions are scored before their values are summed."""

    dim: int
    group: int
    lanes: int
    threads: int
    tile: int

    @property
    def subsets(self) -> int:
        """Threads cover a row of values this many times, each time with other positions; each leaves a part."""
        return self.threads // (self.dim // 2)


def plan(dim: int, group: int, *, threads: int = 128, tile: int = 64) -> Plan | None:
    """None where registers or threads do not suffice. `group`: query heads for each kv head."""
    lanes = 1
    while lanes < WARP and dim % (4 * lanes) == 0 and (lanes < _LEAST_LANES or group * dim > _WANTED_HELD * lanes):
        lanes *= 2
    fits = dim % 2 == 0 and group * dim <= _MOST_HELD * lanes and dim // 2 <= threads and group <= threads
    return Plan(dim, group, lanes, threads, tile) if fits else None


@device
def _float_low(rows, which, head, position, pair):
    return rows[which, head, position, 2 * pair]


@device
def _float_high(rows, which, head, position, pair):
    return rows[which, head, position, 2 * pair + 1]


@device
def _word_low(rows, which, head, position, pair):
    return low_half(rows[which, head, position, pair])


@device
def _word_high(rows, which, head, position, pair):
    return high_half(rows[which, head, position, pair])


def make(shape: Plan, *, bfloat16_query: bool, bfloat16_rows: bool) -> Callable[..., None]:
    """A kernel on grid (splits, kv heads, n); rows as float32, or bfloat16 two to an int32."""
    group, threads, tile, subsets, lanes = shape.group, shape.threads, shape.tile, shape.subsets, shape.lanes
    pairs = shape.dim // 2
    asked_count, sum_count = 2 * group * (pairs // lanes), 3 * group
    read = (_word_low, _word_high) if bfloat16_rows else (_float_low, _float_high)
    ask = _asking(shape, widen if bfloat16_query else plain)
    score, soften, gather, leave = _scoring(shape, *read), _softening(shape), _gathering(shape, *read), _leaving(shape)

    def attend(query, rows, index, scale, parts):
        """parts float32 [n, heads, splits * subsets, dim + 2]: peak score, sum of exponentials, sums of values.

        query [n, heads, dim]; rows [2, kv heads, positions, dim]; index int64 [n]: token t sees 0..index[t]. A part
        without positions has the peak -inf, and nothing else of it is written.
        """
        scores = cuda.shared.array((group, tile), F32)
        peaks = cuda.shared.array(group, F32)
        fades = cuda.shared.array(group, F32)
        scratch = cuda.shared.array(threads, F32)
        asked = cuda.local.array(asked_count, F32)
        sums = cuda.local.array(sum_count, F32)
        thread, split, head, token = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        length = min(index[token] + 1, rows.shape[2])
        splits = cuda.gridDim.x
        run = (length + splits * tile - 1) // (splits * tile) * tile
        first, last = split * run, min(length, (split + 1) * run)
        ask(query, token, head, thread % lanes, scale, asked)
        for i in range(sum_count):
            sums[i] = ZERO
        if thread < group:
            peaks[thread] = _LOWEST
        column, subset = (thread % pairs) & _NOT_NEGATIVE, thread // pairs
        cuda.syncthreads()
        for start in range(first, last, tile):
            score(rows, head, start, last, thread, asked, scratch, scores)
            cuda.syncthreads()
            soften(thread, scores, peaks, fades)
            if subset < subsets:
                for i in range(sum_count):
                    sums[i] *= fades[i // 3]
                gather(rows, head, start, last, column, subset, scores, sums)
            cuda.syncthreads()
        if subset < subsets:
            leave(parts, token, head, split * subsets + subset, column, first < last, peaks, sums)

    return attend


def _asking(shape: Plan, load: Any) -> Any:
    group, held, lanes = shape.group, shape.dim // 2 // shape.lanes, shape.lanes

    @device
    def ask(query, token, head, lane, scale, asked):
        """What a thread keeps of the queries of a group, in pairs, times the scale."""
        for g in range(group):
            for i in range(held):
                pair = (lane & _NOT_NEGATIVE) + i * lanes
                asked[2 * (g * held + i)] = load(query[token, head * group + g, 2 * pair]) * scale
                asked[2 * (g * held + i) + 1] = load(query[token, head * group + g, 2 * pair + 1]) * scale

    return ask


def _scoring(shape: Plan, low: Any, high: Any) -> Any:
    group, lanes, tile = shape.group, shape.lanes, shape.tile
    held, apart = shape.dim // 2 // lanes, shape.threads // lanes

    @device
    def score(rows, head, start, last, thread, asked, scratch, scores):
        """scores [group, tile] of the positions from `start`, -inf from `last` on. Every thread of the block calls."""
        lane, place = (thread % lanes) & _NOT_NEGATIVE, thread // lanes
        for base in range(0, tile, apart):
            position = start + base + place
            row = min(position, last - 1) & _NOT_NEGATIVE
            for g in range(group):
                total = ZERO
                for i in range(held):
                    pair, at = lane + i * lanes, 2 * (g * held + i)
                    total += asked[at] * low(rows, 0, head, row, pair)
                    total += asked[at + 1] * high(rows, 0, head, row, pair)
                total = group_sum(total, lanes, scratch, thread)
                if lane == 0 and base + place < tile:
                    scores[g, base + place] = total if position < last else _LOWEST

    return score


def _softening(shape: Plan) -> Any:
    group, threads, tile = shape.group, shape.threads, shape.tile

    @device
    def soften(thread, scores, peaks, fades):
        """Scores become exponentials over the peak so far; `fades`: what earlier ones are to be multiplied with."""
        if thread < group:
            peak = peaks[thread]
            higher = peak
            for t in range(tile):
                higher = max(higher, scores[thread, t])
            peaks[thread] = higher
            fades[thread] = math.exp(peak - higher)
        cuda.syncthreads()
        for i in range(thread, group * tile, threads):
            scores[i // tile, i % tile] = math.exp(scores[i // tile, i % tile] - peaks[i // tile])
        cuda.syncthreads()

    return soften


def _gathering(shape: Plan, low: Any, high: Any) -> Any:
    group, tile, subsets = shape.group, shape.tile, shape.subsets

    @device
    def gather(rows, head, start, last, column, subset, scores, sums):
        """Add the values of a thread's positions and columns, weighted: for each query even, odd, weights."""
        for t in range(subset, tile, subsets):
            row = min(start + t, last - 1) & _NOT_NEGATIVE
            even, odd = low(rows, 1, head, row, column), high(rows, 1, head, row, column)
            for g in range(group):
                weight = scores[g, t]
                sums[3 * g] += weight * even
                sums[3 * g + 1] += weight * odd
                sums[3 * g + 2] += weight

    return gather


def _leaving(shape: Plan) -> Any:
    group = shape.group

    @device
    def leave(parts, token, head, part, column, any_position, peaks, sums):
        """Write a thread's columns of its part."""
        for g in range(group):
            target = parts[token, head * group + g, part]
            if column == 0:
                target[0] = peaks[g]
                target[1] = sums[3 * g + 2]
            if any_position:
                target[2 + 2 * column] = sums[3 * g]
                target[3 + 2 * column] = sums[3 * g + 1]

    return leave


def make_combine(dim: int, *, gated: bool, bfloat16_gate: bool, bfloat16_out: bool) -> Callable[..., None]:
    """A kernel of at least `dim` threads on grid (heads, n). Without `gated`, `gate` is not read."""
    load, store = (widen if bfloat16_gate else plain), (narrow if bfloat16_out else plain)

    def combine(parts, gate, out):
        """out [n, heads * dim] of parts [n, heads, parts, dim + 2], times sigmoid(gate [n, heads * dim])."""
        thread, head, token = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockIdx.y
        if thread >= dim:
            return
        peak = _LOWEST
        for p in range(parts.shape[2]):
            peak = max(peak, parts[token, head, p, 0])
        total, value = ZERO, ZERO
        for p in range(parts.shape[2]):
            found = parts[token, head, p, 0]
            if found > _LOWEST:
                weight = math.exp(found - peak)
                total += weight * parts[token, head, p, 1]
                value += weight * parts[token, head, p, 2 + thread]
        value /= total
        place = head * dim + thread
        if gated:
            value /= np.float32(1.0) + math.exp(-load(gate[token, place]))
        out[token, place] = store(value)

    return combine


def signature(*, bfloat16_query: bool, bfloat16_rows: bool) -> Any:
    query, rows = (I16 if bfloat16_query else F32), (I32 if bfloat16_rows else F32)
    return types.void(query[:, :, ::1], rows[:, :, :, ::1], I64[::1], F32, F32[:, :, :, ::1])


def combine_signature(*, bfloat16_gate: bool, bfloat16_out: bool) -> Any:
    gate, out = (I16 if bfloat16_gate else F32), (I16 if bfloat16_out else F32)
    return types.void(F32[:, :, :, ::1], gate[:, ::1], out[:, ::1])
