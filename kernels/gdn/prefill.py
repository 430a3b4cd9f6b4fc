"""LinearPrefill: many tokens of one sequence through a linear layer, between its matrix products.

Key heads are dealt out to threads; what a head needs of a chunk of tokens stays in the core's cache from the
convolution to the gated norm.
"""
# mypy: allow-untyped-defs, allow-untyped-decorators

import numpy as np

from neuron.kernels.decoder.products import Activations, activation_type, row_buffer, take_rows
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.formats.model_config import LinearAttentionConfig
from neuron.kernels.gdn.chunk.cpu import CHUNK, chunk_rule, copy_rows
from neuron.kernels.gdn.decode.cpu import gated_norm, normalise
from neuron.kernels.gdn.gating.cpu import log_decay, stored_head, strength
from neuron.kernels.gdn.recurrent.cpu import advance
from neuron.kernels.gdn.state import RecurrentState
from neuron.kernels.gdn.vector import conv_rows
from neuron.kernels.jit import compiled, inlined
from neuron.kernels.quant.memory import load_f32, store_f32
from neuron.kernels.quant.products import narrow_row
from neuron.kernels.quant.rows import EXPAND
from neuron.kernels.quant.vector import narrow_f32
from neuron.kernels.threads import Team
from neuron.kernels.tiles import fetch
from neuron.kernels.weights.matrix import Floats

_BFLOAT16 = int(GgmlType.BF16)
_widen_bf16 = EXPAND[GgmlType.BF16, False]


class LinearPrefill:
    """Buffers for `rows` tokens. Whole chunks by the chunked form, what is left of a call by the recurrence."""

    def __init__(self, linear: LinearAttentionConfig, rows: int, epsilon: float, team: Team, *, exact: bool) -> None:
        self._linear, self._epsilon, self._team = linear, epsilon, team
        columns = -(-linear.value_dim // 16) * 16
        ratio, widest = linear.value_heads // linear.key_heads, max(linear.key_dim, columns)
        inputs = (linear.conv_kernel - 1 + CHUNK) * widest
        keys, values = 2 * CHUNK * linear.key_dim, 2 * CHUNK * columns
        states, paired = ratio * linear.key_dim * columns, linear.key_dim * max(columns, CHUNK) // 2
        space = (linear.key_dim + 2 * CHUNK + 1) * CHUNK + paired
        self._private = -(-(inputs + keys + values + states + space + 2 * CHUNK) // 16) * 16
        self._scratch = np.empty(team.threads * self._private, dtype=np.float32)
        self._out = row_buffer(rows, linear.value_heads * linear.value_dim, activation_type(exact=exact))

    @property
    def nbytes(self) -> int:
        return self._scratch.nbytes + self._out.nbytes

    def run(
        self,
        mixed: Activations,
        z: Activations,
        a: Floats,
        b: Floats,
        vectors: dict[str, Floats],
        state: RecurrentState,
        layer: int,
        position: int,
    ) -> Activations:
        """Output [n, Hv V] in the products' type; `state` of linear layer `layer` moves from `position` on by n.

        mixed [n, channels], z [n, Hv V] in float32 or the bits of bfloat16, rows contiguous; a, b float32 [n, Hv],
        contiguous. Value heads are in the files' order.
        """
        linear, n = self._linear, len(mixed)
        shape = (linear.key_heads, linear.value_heads, linear.key_dim, linear.value_dim, linear.conv_kernel)
        roles = ("linear_conv", "linear_decay", "linear_dt_bias", "linear_norm")
        out = take_rows(self._out, n, linear.value_heads * linear.value_dim)
        self._team.run(
            mix_prompt,
            n,
            _rows(mixed),
            _rows(z),
            a.ctypes.data,
            b.ctypes.data,
            tuple(vectors[role].ctypes.data for role in roles),
            state.ring(layer).ctypes.data,
            state.recurrent(layer).ctypes.data,
            position,
            (*shape, int(linear.tiled_value_heads)),
            self._epsilon,
            self._scratch.ctypes.data,
            self._private,
            _rows(out),
        )
        return out


def _rows(matrix: Activations) -> tuple[int, int, int]:
    """Address, bytes from row to row, kind."""
    kind = GgmlType.F32 if matrix.dtype == np.float32 else GgmlType.BF16
    return matrix.ctypes.data, matrix.strides[0], int(kind)


@compiled
def mix_prompt(
    thread, threads, n, mixed, z, a, b, vectors, ring, states, position, shape, epsilon, scratch, private, out
):
    """See LinearPrefill.run; mixed, z and out are (address, bytes from row to row, kind)."""
    keys, heads, width, value_width, taps, tiled = shape
    ratio, columns = heads // keys, (value_width + 15) // 16 * 16
    channels, wide = 2 * keys * width + heads * value_width, columns * 4
    q = scratch + thread * private * 4
    k = q + CHUNK * width * 4
    v = k + CHUNK * width * 4
    o = v + CHUNK * wide
    held = o + CHUNK * wide
    g = held + ratio * width * wide
    beta = g + CHUNK * 4
    space = beta + CHUNK * 4
    inputs = space + ((width + 2 * CHUNK + 1) * CHUNK + width * max(columns, CHUNK) // 2) * 4
    pairs = 1 if out[2] == _BFLOAT16 and width % 2 == 0 else 0
    taps_at = (vectors[0], channels * 4, taps)
    for head in range(thread, keys, threads):
        for member in range(ratio):
            state = states + (head * ratio + member) * width * value_width * 4
            copy_rows(state, value_width * 4, held + member * width * wide, wide, width, value_width)
        for start in range(0, n, CHUNK):
            rows = min(CHUNK, n - start)
            window = (start, rows, position, ring, channels * 4)
            convolve(window, mixed, taps_at, head * width, width, inputs, q, width * 4)
            convolve(window, mixed, taps_at, (keys + head) * width, width, inputs, k, width * 4)
            for t in range(rows):
                normalise(q + t * width * 4, width, width**-0.5)
                normalise(k + t * width * 4, width, 1.0)
                if pairs == 1 and rows == CHUNK:
                    narrow_row(_BFLOAT16, q + t * width * 4, q + t * width * 4, width)
            for member in range(ratio):
                grouped = head * ratio + member
                stored = stored_head(grouped, ratio, keys, tiled)
                convolve(window, mixed, taps_at, 2 * keys * width + stored * value_width, value_width, inputs, v, wide)
                gates(start, rows, heads, stored, a, b, vectors, g, beta)
                state = held + member * width * wide
                if rows == CHUNK:
                    chunk_rule(pairs, q, k, v, g, beta, width, columns, space, state, wide, o)
                else:
                    for t in range(rows):
                        decay, power = load_f32(g + 4 * t), load_f32(beta + 4 * t)
                        key, row = t * width * 4, t * wide
                        advance(state, q + key, k + key, v + row, decay, power, width, columns, o + row)
                finish(start, rows, stored, value_width, o, wide, z, vectors[3], epsilon, inputs, out)
        for member in range(ratio):
            state = states + (head * ratio + member) * width * value_width * 4
            copy_rows(held + member * width * wide, wide, state, value_width * 4, width, value_width)
        remember(n, mixed, position, ring, channels * 4, taps, head * width, width)
        remember(n, mixed, position, ring, channels * 4, taps, (keys + head) * width, width)
        for member in range(ratio):
            stored = stored_head(head * ratio + member, ratio, keys, tiled)
            first = 2 * keys * width + stored * value_width
            remember(n, mixed, position, ring, channels * 4, taps, first, value_width)


@inlined
def row_of(matrix, t, first, count, spare):
    """Address of `count` numbers of row t from column `first` on as float32; in `spare` if they had to be widened."""
    address, step, kind = matrix
    size = 2 if kind == _BFLOAT16 else 4
    place = address + t * step + size * first
    # Rows of one head lie so far apart that no cache looks ahead by itself.
    fetch(place + CHUNK * step, size * count)
    if size == 4:
        return place
    _widen_bf16(place, spare, count)
    return spare


@inlined
def take_row(matrix, t, first, count, out):
    """`count` numbers of row t from column `first` on as float32 to `out`."""
    found = row_of(matrix, t, first, count, out)
    if found != out:
        narrow_f32(found, out, count)


@inlined
def convolve(window, x, taps_at, first, count, inputs, out, out_row):
    """silu(conv) of some channels of a window of tokens to `out`, of which the ring holds what came before the call."""
    start, rows, position, ring, ring_row = window
    weight, weight_row, taps = taps_at
    for t in range(start - taps + 1, start + rows):
        place = inputs + (t - start + taps - 1) * count * 4
        if t >= 0:
            take_row(x, t, first, count, place)
        else:
            narrow_f32(ring + ((position + t) % taps) * ring_row + first * 4, place, count)
    conv_rows(inputs, count * 4, weight + first * 4, weight_row, taps, rows, count, out, out_row)


@inlined
def remember(n, x, position, ring, ring_row, taps, first, count):
    """The last inputs of some channels into the sequence's ring."""
    for t in range(max(0, n - taps), n):
        take_row(x, t, first, count, ring + ((position + t) % taps) * ring_row + first * 4)


@inlined
def gates(start, rows, heads, stored, a, b, vectors, g, beta):
    """Log decay and strength of one head's window."""
    decay, bias = load_f32(vectors[1] + stored * 4), load_f32(vectors[2] + stored * 4)
    for t in range(rows):
        place = ((start + t) * heads + stored) * 4
        store_f32(g + 4 * t, log_decay(load_f32(a + place), decay, bias))
        store_f32(beta + 4 * t, strength(load_f32(b + place)))


@inlined
def finish(start, rows, stored, width, o, o_row, z, norm, epsilon, spare, out):
    """Gated norm of one head's window with its part of z, to its part of `out`."""
    address, step, kind = out
    size = 2 if kind == _BFLOAT16 else 4
    for t in range(rows):
        gate = row_of(z, start + t, stored * width, width, spare)
        gated_norm(o + t * o_row, gate, norm, width, epsilon, spare)
        narrow_row(kind, spare, address + (start + t) * step + stored * width * size, width)
