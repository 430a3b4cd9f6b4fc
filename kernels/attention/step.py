"""Softmax attention of single tokens over a cache, for compiled code: rope, cache write, split scores, combination."""
# mypy: allow-untyped-defs, allow-untyped-decorators

import math

from neuron.kernels.attention.heads import HEADS, mix_heads, score_heads
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.jit import inlined
from neuron.kernels.quant.memory import load_f32, store_f32
from neuron.kernels.quant.products import add_scaled_row, dot_row, narrow_row
from neuron.kernels.quant.vector import add_scaled_f32, exponentials, largest, scale_by, scaled_product

#: Positions whose scores are held at once by one thread, per head of a group.
TILE = 128
_BF16 = int(GgmlType.BF16)


@inlined
def root_mean_square(x, count, epsilon):
    """1 / rms of `count` floats."""
    return 1.0 / math.sqrt(dot_row(0, x, x, count) / count + epsilon)


@inlined
def rotate(x, table, rotary_dim, adjacent):
    """Turn the first `rotary_dim` floats at `x` in place. `table`: cosines, then sines, rotary_dim / 2 each."""
    half = rotary_dim // 2
    for i in range(half):
        first = x + (8 * i if adjacent == 1 else 4 * i)
        second = first + (4 if adjacent == 1 else 4 * half)
        cosine, sine = load_f32(table + 4 * i), load_f32(table + 4 * (half + i))
        a, b = load_f32(first), load_f32(second)
        store_f32(first, a * cosine - b * sine)
        store_f32(second, b * cosine + a * sine)


@inlined
def prepare_head(x, norm, table, shape):
    """Norm (address of its weight, or 0) and rope of one head of q or k, in place."""
    if norm != 0:
        factor = root_mean_square(x, shape.head_dim, shape.epsilon)
        scaled_product(x, norm, factor, x, shape.head_dim)
    rotate(x, table, shape.rotary_dim, shape.adjacent)


@inlined
def attend(q, group, keys, values, first, last, shape, scores, out, out_step):
    """The `group` query heads at `q` that share keys and values, over positions first <= p < last.

    `out`, `out_step` bytes apart: peak score, sum of exponentials, head_dim floats each. Online softmax over tiles
    (https://arxiv.org/abs/2205.14135). Every tile is read from memory once for all heads: its values while its keys are
    met, the next tile's keys while its values are.
    """
    step = shape.head_dim * shape.kv_size
    for g in range(group):
        store_f32(out + g * out_step, -math.inf)
        for i in range(1, shape.head_dim + 2):
            store_f32(out + g * out_step + 4 * i, 0.0)
    whole = shape.head_dim % 16 == 0 and shape.kv_kind != _BF16
    for start in range(first, last, TILE):
        count = min(TILE, last - start)
        if whole:
            for g in range(0, group, HEADS):
                query, target = q + g * shape.head_dim * 4, out + g * out_step
                heads, place = min(HEADS, group - g), start * step
                # The last tile asks for its own keys, which costs nothing: they are in the core's cache.
                coming = keys + (start + TILE if start + TILE < last else start) * step
                attend_heads(heads, query, keys + place, values + place, coming, count, shape, scores, target, out_step)
            continue
        for g in range(group):
            query = q + g * shape.head_dim * 4
            attend_tile(query, keys + start * step, values + start * step, count, shape, scores, out + g * out_step)


@inlined
def attend_heads(heads, q, keys, values, coming, count, shape, scores, out, out_step):
    """Add `count` <= TILE positions to the partial results of `heads` <= HEADS neighbouring queries.

    `coming`: keys of the next tile.
    """
    dim, kind = shape.head_dim, shape.kv_kind
    step, line = dim * shape.kv_size, TILE * 4
    score_heads(kind, heads, q, dim * 4, keys, step, dim, count, shape.scale, scores, line, values)
    for g in range(heads):
        part, mine = out + g * out_step, scores + g * line
        total = soften(part, part + 8, mine, count, dim)
        store_f32(part + 4, load_f32(part + 4) + total)
    mix_heads(kind, heads, scores, line, values, step, dim, count, out + 8, out_step, coming)


@inlined
def soften(part, target, scores, count, dim):
    """Scores become weights under the new peak, to which the partial result is brought; the sum of the weights."""
    padded = (count + 15) // 16 * 16
    for i in range(count, padded):
        store_f32(scores + 4 * i, -math.inf)
    peak = load_f32(part)
    higher = max(peak, largest(scores, padded))
    if higher > peak:
        correction = math.exp(peak - higher)
        scale_by(target, correction, dim)
        store_f32(part, higher)
        store_f32(part + 4, load_f32(part + 4) * correction)
    return exponentials(scores, higher, padded)


@inlined
def attend_tile(q, keys, values, count, shape, scores, out):
    """Add `count` <= TILE positions to one head's partial result at `out`."""
    dim, kind = shape.head_dim, shape.kv_kind
    step = dim * shape.kv_size
    target = out + 8
    for i in range(count):
        store_f32(scores + 4 * i, dot_row(kind, keys + i * step, q, dim) * shape.scale)
    total = soften(out, target, scores, count, dim)
    for i in range(count):
        add_scaled_row(kind, values + i * step, load_f32(scores + 4 * i), target, dim)
    store_f32(out + 4, load_f32(out + 4) + total)


@inlined
def combine(parts, splits, part_bytes, dim, out):
    """Join the `splits` partial results of one query head at `parts` into `out` float32 [dim]."""
    peak = load_f32(parts)
    for s in range(1, splits):
        peak = max(peak, load_f32(parts + s * part_bytes))
    total = 0.0
    for i in range(dim):
        store_f32(out + 4 * i, 0.0)
    for s in range(splits):
        part = parts + s * part_bytes
        weight = math.exp(load_f32(part) - peak)
        total += weight * load_f32(part + 4)
        add_scaled_f32(part + 8, weight, out, dim)
    scale_by(out, 1.0 / total, dim)


@inlined
def write_row(x, address, shape):
    """One head's key or value into the cache."""
    narrow_row(shape.kv_kind, x, address, shape.head_dim)
