"""Rows of 4-bit blocks of 32, four blocks at a time, for CPUs that multiply bytes (AVX-512 VNNI).

The 16 bytes of each of four blocks fill one 64-byte vector, so that four 32-bit lanes belong to each block, one scale
vector serves all, and int16 activations enter as high and low bytes. Activations are laid out for it (activations.py).
"""

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir
from numba.core import cgutils

from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.quant.emit import F16, F32, I8, I16, I32, I64, Emitter

#: Weights of four blocks.
QUAD = 128
_BLOCKS = 4


@dataclass(slots=True, frozen=True)
class Quad:
    """`values`: offset of the nibbles in a block. `scales` loads, for each block, its scale and its offset's factor,
    <8 x float>. An odd lane's sum is multiplied by `offset`."""

    kind: GgmlType
    values: int
    scales: Callable[[Emitter, list[ir.Value | None]], ir.Value]
    offset: float


def _scale_and_least(e: Emitter, blocks: list[ir.Value | None]) -> ir.Value:
    words = ir.Constant(ir.VectorType(I32, _BLOCKS), [ir.Constant(I32, 0)] * _BLOCKS)
    for index, block in enumerate(blocks):
        if block is not None:
            words = e.b.insert_element(words, e.load(block, I32), ir.Constant(I32, index))
    return e.b.fpext(e.b.bitcast(words, ir.VectorType(F16, 8)), ir.VectorType(F32, 8))


def _scale_twice(e: Emitter, blocks: list[ir.Value | None]) -> ir.Value:
    halves = ir.Constant(ir.VectorType(I16, _BLOCKS), [ir.Constant(I16, 0)] * _BLOCKS)
    for index, block in enumerate(blocks):
        if block is not None:
            halves = e.b.insert_element(halves, e.load(block, I16), ir.Constant(I32, index))
    wide = e.b.fpext(e.b.bitcast(halves, ir.VectorType(F16, 4)), ir.VectorType(F32, 4))
    return e.pick(wide, (0, 0, 1, 1, 2, 2, 3, 3))


QUADS = {
    GgmlType.Q4_0: Quad(GgmlType.Q4_0, 2, _scale_twice, -8.0),
    GgmlType.Q4_1: Quad(GgmlType.Q4_1, 4, _scale_and_least, 1.0),
}


def quad_dot(e: Emitter, quad: Quad, row: ir.Value, q: ir.Value, d: ir.Value, cols: ir.Value) -> ir.Value:
    """float32 dot product of one row; `cols` is a multiple of 32."""
    vector = cgutils.alloca_once_value(e.b, e.splat(F32, 16, 0.0))
    offsets = cgutils.alloca_once_value(e.b, e.splat(F32, 8, 0.0))
    size = quad.kind.type_size
    blocks = e.b.udiv(cols, e.i64(32))
    whole = e.b.udiv(blocks, e.i64(_BLOCKS))
    with cgutils.for_range(e.b, whole, intp=I64) as loop:
        base = e.b.add(row, e.b.mul(loop.index, e.i64(_BLOCKS * size)))
        _add_quad(e, quad, [e.at(base, i * size) for i in range(_BLOCKS)], loop.index, (q, d), (vector, offsets))
    left = e.b.sub(blocks, e.b.mul(whole, e.i64(_BLOCKS)))
    base = e.b.add(row, e.b.mul(whole, e.i64(_BLOCKS * size)))
    for count in range(1, _BLOCKS):
        with e.b.if_then(e.b.icmp_unsigned("==", left, e.i64(count))):
            places = [e.at(base, i * size) if i < count else None for i in range(_BLOCKS)]
            _add_quad(e, quad, places, whole, (q, d), (vector, offsets))
    odd = e.sum_floats(e.pick(e.b.load(offsets), (1, 3, 5, 7)))
    return e.fma(odd, ir.Constant(F32, quad.offset), e.sum_floats(e.b.load(vector)))


def _add_quad(
    e: Emitter,
    quad: Quad,
    blocks: list[ir.Value | None],
    index: ir.Value,
    activations: tuple[ir.Value, ir.Value],
    sums: tuple[ir.Value, ir.Value],
) -> None:
    zero = e.splat(I8, 16, 0)
    parts = [zero if block is None else e.load(e.at(block, quad.values), I8, 16) for block in blocks]
    packed = e.join(e.join(parts[0], parts[1]), e.join(parts[2], parts[3]))
    low, high = e.mask(packed, 15), e.shift_right(packed, 4)
    place = e.b.add(activations[0], e.b.shl(index, e.i64(8)))
    high_low, high_high, low_low, low_high = (e.load(e.at(place, 64 * i), I8, 64) for i in range(4))
    total = e.byte_products(e.splat(I32, 16, 0), low, high_low)
    total = e.shift_left(e.byte_products(total, high, high_high), 8)
    total = e.byte_products(total, low_low, low)
    total = e.byte_products(total, low_high, high)
    factors = e.load(e.b.add(activations[1], e.b.shl(index, e.i64(5))), F32, 8)
    scales = e.b.fmul(quad.scales(e, blocks), factors)
    e.b.store(e.b.fadd(e.b.load(sums[1]), scales), sums[1])
    lanes = e.pick(scales, [2 * (lane // 4) for lane in range(16)])
    floats = e.b.sitofp(total, ir.VectorType(F32, 16))
    e.b.store(e.fma(floats, lanes, e.b.load(sums[0])), sums[0])
