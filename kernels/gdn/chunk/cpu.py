"""The gated delta rule in chunks, compiled: matrix products and one substitution for each head and chunk.

What moves the state is float32; what only the output reads may be multiplied in bfloat16 pairs.

A solve by substitution and never powers of the matrix, which explode when keys are alike.
"""
# mypy: allow-untyped-defs, allow-untyped-decorators

import math

from neuron.kernels.gdn.vector import fade_row, pair_rows
from neuron.kernels.jit import compiled, inlined
from neuron.kernels.quant.memory import load_f32, store_f32
from neuron.kernels.quant.vector import add_scaled_f32, narrow_f32, scale_by
from neuron.kernels.tiles import product_f32, product_pairs, transpose

CHUNK = 64
#: Rows that are solved together.
_BLOCK = 4


@inlined
def padded(columns):
    """Columns of a local row: whole vectors."""
    return (columns + 15) // 16 * 16


@inlined
def chunk_rule(pairs, q, k, v, g, beta, width, columns, space, state, state_row, out):
    """One chunk of one head. float32 by address: q, k [CHUNK, width]; v, out [CHUNK, padded columns]; g, beta [CHUNK].

    `state` [width, columns], rows `state_row` bytes apart and whole vectors, moves on; v is overwritten. q is
    normalised and divided by sqrt(width); with `pairs` = 1, for an even width, it is bfloat16 at the start of each row,
    and so are its products. With c the running sum of g and L the unit lower triangle of
    beta_i exp(c_i - c_j) k_i.k_j: L u = beta (v - exp(c) k S); o = exp(c) q S + (q k^T exp(c_i - c_j)) u;
    S = exp(c_last) S + (exp(c_last - c) k)^T u (https://arxiv.org/abs/2412.06464, section 3.3).
    """
    row, key_row, line = columns * 4, width * 4, CHUNK * 4
    turned = space
    lower = turned + width * line
    mixing = lower + CHUNK * line
    total = mixing + CHUNK * line
    paired = total + line
    transpose(k, key_row, CHUNK, width, turned, line)
    # Columns right of the diagonal's block are never read.
    for i in range(0, CHUNK, 16):
        product_f32(16, i + 16, width, k + i * key_row, key_row, 4, turned, line, lower + i * line, line, 1.0, 0.0)
    ask(pairs, 16, CHUNK, width, q, key_row, turned, line, paired, mixing, line)
    running = 0.0
    for i in range(CHUNK):
        running += load_f32(g + 4 * i)
        store_f32(total + 4 * i, running)
        fade_row(total, i, load_f32(beta + 4 * i), lower + i * line, mixing + i * line)
    product_f32(CHUNK, columns, width, k, key_row, 4, state, state_row, out, row, 1.0, 0.0)
    for i in range(CHUNK):
        strength = load_f32(beta + 4 * i)
        scale_by(v + i * row, strength, columns)
        add_scaled_f32(out + i * row, -strength * math.exp(load_f32(total + 4 * i)), v + i * row, columns)
    substitute(lower, v, columns)
    ask(pairs, CHUNK, columns, width, q, key_row, state, state_row, paired, out, row)
    last = load_f32(total + 4 * (CHUNK - 1))
    for i in range(CHUNK):
        scale_by(out + i * row, math.exp(load_f32(total + 4 * i)), columns)
    for i in range(0, CHUNK, _BLOCK):
        product_f32(_BLOCK, columns, i + _BLOCK, mixing + i * line, line, 4, v, row, out + i * row, row, 1.0, 1.0)
    for i in range(CHUNK):
        scale_by(v + i * row, math.exp(last - load_f32(total + 4 * i)), columns)
    product_f32(width, columns, CHUNK, k, 4, key_row, v, row, state, state_row, 1.0, math.exp(last))


@inlined
def ask(pairs, step, columns, width, q, q_row, right, right_row, paired, out, out_row):
    """out [CHUNK, columns] = q . right [width, columns]; of `step` rows only the columns that causality lets be read.

    With `pairs` = 1 q is bfloat16, and `right` is rounded to it at `paired`.
    """
    line = columns * 4
    for j in range(0, width if pairs == 1 else 0, 2):
        pair_rows(right + j * right_row, right + (j + 1) * right_row, paired + j // 2 * line, columns)
    for i in range(0, CHUNK, step):
        seen = i + step if step < CHUNK else columns
        here, target = q + i * q_row, out + i * out_row
        if pairs == 1:
            product_pairs(step, seen, width // 2, here, q_row, 4, paired, line, target, out_row, 1.0, 0.0)
        else:
            product_f32(step, seen, width, here, q_row, 4, right, right_row, target, out_row, 1.0, 0.0)


@inlined
def substitute(lower, u, columns):
    """u [CHUNK, columns] becomes the solution of (1 + strict lower triangle) x = u, a block of rows at a time."""
    row, line = columns * 4, CHUNK * 4
    for i in range(0, CHUNK, _BLOCK):
        if i > 0:
            product_f32(_BLOCK, columns, i, lower + i * line, line, 4, u, row, u + i * row, row, -1.0, 1.0)
        for r in range(i + 1, i + _BLOCK):
            for j in range(i, r):
                add_scaled_f32(u + j * row, -load_f32(lower + r * line + 4 * j), u + r * row, columns)


@inlined
def copy_rows(source, source_row, out, out_row, rows, count):
    """`rows` rows of `count` float32."""
    for i in range(rows):
        narrow_f32(source + i * source_row, out + i * out_row, count)


@inlined
def chunk_space(width, value_width):
    """Floats of one thread of `chunked`."""
    columns = (value_width + 15) // 16 * 16
    return (2 * CHUNK + width) * columns + (width + 2 * CHUNK + 1) * CHUNK


@compiled
def chunked(thread, threads, heads, ratio, whole, stride, q, k, v, g, beta, state, key_width, value_width, space, out):
    """The first `whole` tokens (a multiple of CHUNK) of every head; arguments as `recurrent`, which does the rest.

    `space`: float32 [threads, chunk_space(key_width, value_width)].
    """
    columns = padded(value_width)
    values = space + thread * chunk_space(key_width, value_width) * 4
    result = values + CHUNK * columns * 4
    held = result + CHUNK * columns * 4
    rest = held + key_width * columns * 4
    wide, row = columns * 4, value_width * 4
    for h in range(heads * thread // threads, heads * (thread + 1) // threads):
        mine = state + h * key_width * row
        copy_rows(mine, row, held, wide, key_width, value_width)
        for t in range(0, whole, CHUNK):
            key = ((h // ratio) * stride + t) * key_width * 4
            at = h * stride + t
            copy_rows(v + at * row, row, values, wide, CHUNK, value_width)
            gates = (g + at * 4, beta + at * 4)
            chunk_rule(0, q + key, k + key, values, gates[0], gates[1], key_width, columns, rest, held, wide, result)
            copy_rows(result, wide, out + at * row, row, CHUNK, value_width)
        copy_rows(held, wide, mine, row, key_width, value_width)
