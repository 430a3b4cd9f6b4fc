"""Causal attention of many queries of one sequence over its cache, compiled, for CPUs that multiply bfloat16 pairs.

Keys and values are unpacked once for all queries, a stretch of positions at a time; scores of a tile of queries stay
in the core's cache (https://arxiv.org/abs/2205.14135). Products are in bfloat16 pairs, or float32 where the cache is.
"""
# mypy: allow-untyped-defs, allow-untyped-decorators

import math

from neuron.kernels.attention.vector import interleave, peak, soften_bf16, soften_f32
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.gdn.vector import sigmoid_product
from neuron.kernels.jit import compiled, inlined
from neuron.kernels.quant.memory import load_f32, store_f32
from neuron.kernels.quant.products import narrow_row
from neuron.kernels.quant.rows import EXPAND
from neuron.kernels.quant.vector import narrow_f32, scale_by
from neuron.kernels.threads import barrier
from neuron.kernels.tiles import product_f32, product_pairs, transpose

#: Positions that are unpacked before any query meets them; positions of one pass of a tile; positions of a panel of
#: keys, and columns of one of values.
STRETCH, BLOCK, PANEL = 2048, 256, 64
#: Queries of one head that are taken together.
TILE = 24
_F32, _F16, _BF16 = int(GgmlType.F32), int(GgmlType.F16), int(GgmlType.BF16)
_f16_to_bf16, _f32_to_bf16 = EXPAND[GgmlType.F16, True], EXPAND[GgmlType.F32, True]


def padded(dim: int) -> int:
    """Numbers of a row of sums."""
    return -(-dim // 16) * 16


def shared_bytes(kv_heads: int, dim: int, *, exact: bool) -> int:
    """Of the unpacked keys and values of one stretch."""
    return kv_heads * 2 * STRETCH * max(dim, -(-dim // PANEL) * PANEL) * (4 if exact else 2)


def private_bytes(dim: int, *, exact: bool) -> int:
    """Of one thread: scores and weights of a tile, or the rows of a panel."""
    return max(2 * TILE * BLOCK * 4, PANEL * dim * (4 if exact else 2)) + 128


@compiled
def flash(thread, threads, n, position, exact, query, layer, shape, spaces, gate, out, out_row):
    """query [heads, n, dim] at positions position..position + n - 1, whose rows are in the cache, to `out`.

    `out` [n, heads * dim]. bfloat16, or float32 with `exact` = 1. `layer`: address of the layer's keys. `spaces`:
    barrier; address of the unpacked stretch; private address, bytes; sums float32 [heads, n, padded dim]; peaks and
    totals float32 [heads, n, 2]. `gate`: float32 [n, heads * dim], whose sigmoid scales the output, or 0.
    """
    state, unpacked, private, private_bytes_, sums, marks = spaces
    length, dim = position + n, shape.head_dim
    group = shape.heads // shape.kv_heads
    mine = private + thread * private_bytes_
    row = (dim + 15) // 16 * 64
    tiles = (n + TILE - 1) // TILE
    for start in range(0, length, STRETCH):
        end = min(length, start + STRETCH)
        panels = (end - start + PANEL - 1) // PANEL
        for unit in range(thread, 2 * shape.kv_heads * panels, threads):
            which, h, first = unit // panels // shape.kv_heads, unit // panels % shape.kv_heads, unit % panels * PANEL
            count = min(PANEL, end - start - first)
            place = held_at(which, h, first, exact, shape, unpacked)
            unpack(which, h, start + first, count, exact, layer, shape, mine, place)
        barrier(state, threads)
        for unit in range(thread, shape.heads * tiles, threads):
            head, first = unit // tiles, unit % tiles * TILE
            count = min(TILE, n - first)
            at = head * n + first
            if start == 0:
                for r in range(count):
                    store_f32(marks + (at + r) * 8, -math.inf)
                    store_f32(marks + (at + r) * 8 + 4, 0.0)
            places = (query + at * dim * (4 if exact == 1 else 2), sums + at * row, marks + at * 8, mine)
            stop = min(end, position + first + count)
            for block in range(start, stop, BLOCK):
                keys = held_at(0, head // group, block - start, exact, shape, unpacked)
                values = held_at(1, head // group, block - start, exact, shape, unpacked)
                used, ahead = min(BLOCK, stop - block), position + first - block
                tile(count, ahead, used, 0.0 if block == 0 else 1.0, exact, keys, values, shape, places)
            if position + first + count <= end and (start == 0 or position + first + count > start):
                finish(head, first, count, n, exact, shape, sums, marks, gate, mine, out, out_row)
        barrier(state, threads)


@inlined
def held_at(which, h, first, exact, shape, unpacked):
    """Address of one head's keys (`which` 0) or values from the position `first` of the stretch on.

    Keys: [position / 64][dim (pairs), 64]; values: [dim / 64][position (pairs), 64].
    """
    width, size = (shape.head_dim + PANEL - 1) // PANEL * PANEL, 4 if exact == 1 else 2
    head = unpacked + (which * shape.kv_heads + h) * STRETCH * width * size
    return head + first * (width if which == 0 else PANEL) * size


@inlined
def unpack(which, h, first, count, exact, layer, shape, rows, out):
    """`count` <= PANEL positions of one head to their place, see held_at. `rows`: PANEL rows."""
    dim, size = shape.head_dim, 4 if exact == 1 else 2
    source = layer + (which * shape.kv_heads + h) * shape.kv_head_bytes + first * dim * shape.kv_size
    step = dim * size
    for p in range(count):
        here = source + p * dim * shape.kv_size
        if exact == 1:
            narrow_f32(here, rows + p * step, dim)
        elif shape.kv_kind == _F16:
            _f16_to_bf16(here, rows + p * step, dim)
        elif shape.kv_kind == _F32:
            _f32_to_bf16(here, rows + p * step, dim)
        else:
            narrow_f32(here, rows + p * step, dim // 2)
    if which == 0:
        transpose(rows, step, PANEL, step // 4, out, PANEL * 4)
        return
    if count % 2 == 1:
        for i in range(step // 4):
            store_f32(rows + count * step + 4 * i, 0.0)
    for column in range(0, dim, PANEL):
        width, at = min(PANEL, dim - column), rows + column * size
        here = out + column * STRETCH * size
        if exact == 1:
            for p in range(count):
                narrow_f32(at + p * step, here + p * 256, width)
        else:
            for p in range(0, count, 2):
                interleave(at + p * step, at + (p + 1) * step, here + p * 128, width)


@inlined
def tile(count, ahead, used, kept, exact, keys, values, shape, places):
    """Add a block of `used` <= BLOCK positions to the sums of `count` queries; query r sees ahead + r + 1 of them.

    `kept`: 0 for the first block, before which the sums are anything, else 1.
    """
    query, sums, marks, scores = places
    dim = shape.head_dim
    row = (dim + 15) // 16 * 64
    width = (dim + PANEL - 1) // PANEL * PANEL
    weights = scores + TILE * BLOCK * 4
    cols = (used + 15) // 16 * 16
    for start in range(0, cols, PANEL):
        panel, out = keys + start * width * (4 if exact == 1 else 2), scores + start * 4
        wide = min(PANEL, cols - start)
        if exact == 1:
            product_f32(count, wide, dim, query, dim * 4, 4, panel, PANEL * 4, out, BLOCK * 4, shape.scale, 0.0)
        else:
            product_pairs(count, wide, dim // 2, query, dim * 2, 4, panel, PANEL * 4, out, BLOCK * 4, shape.scale, 0.0)
    for r in range(count):
        valid = max(0, min(used, ahead + r + 1))
        here, weight = scores + r * BLOCK * 4, weights + r * BLOCK * 4
        held = load_f32(marks + r * 8)
        highest = max(held, peak(here, valid))
        if highest == -math.inf:
            highest = 0.0
        fading = math.exp(held - highest)
        total = (
            soften_f32(here, valid, cols, highest, weight)
            if exact == 1
            else soften_bf16(here, valid, cols, highest, weight)
        )
        if kept != 0.0 and fading != 1.0:
            scale_by(sums + r * row, fading, row // 4)
        if valid > 0:
            store_f32(marks + r * 8, highest)
        store_f32(marks + r * 8 + 4, load_f32(marks + r * 8 + 4) * fading + total)
    for first in range(0, dim, PANEL):
        wide, out = min(PANEL, row // 4 - first), sums + first * 4
        if exact == 1:
            right = values + first * STRETCH * 4
            product_f32(count, wide, used, weights, BLOCK * 4, 4, right, 256, out, row, 1.0, kept)
        else:
            right = values + first * STRETCH * 2
            product_pairs(count, wide, (used + 1) // 2, weights, BLOCK * 4, 4, right, 256, out, row, 1.0, kept)


@inlined
def finish(head, first, count, n, exact, shape, sums, marks, gate, spare, out, out_row):
    """Sums of a tile divided by their totals, and gated, to `out`."""
    dim = shape.head_dim
    row = (dim + 15) // 16 * 64
    for r in range(count):
        at = head * n + first + r
        here = sums + at * row
        scale_by(here, 1.0 / load_f32(marks + at * 8 + 4), dim)
        if gate != 0:
            sigmoid_product(here, gate + ((first + r) * shape.heads + head) * dim * 4, here, dim)
        place = out + (first + r) * out_row + head * dim * (4 if exact == 1 else 2)
        narrow_row(_F32 if exact == 1 else _BF16, here, place, dim)
