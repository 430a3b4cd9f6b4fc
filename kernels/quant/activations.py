# mypy: allow-untyped-defs, allow-untyped-decorators
"""Activations as int16 groups of 32 with a float scale and sum each, in the layout that a row kernel reads.

NATURAL: int16 in order. QUAD: per 128 values four runs of 64 bytes: high bytes of the first 16 of each of four groups,
high bytes of the last 16, then the low bytes likewise; the last quad is filled up with zeros. PAIRS: per 128 values
high bytes of groups 0, 2, 1, 3, then their low bytes. FLOAT: nothing.
Scales: pairs (scale, scale * sum of the group) float32.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.jit import inlined
from neuron.kernels.quant.emit import F32, I8, I16, I32, I64, Emitter, has_byte_products
from neuron.kernels.quant.quads import QUAD

#: The largest magnitude of a group becomes this.
PEAK = 32767.0
NONE, FLOAT, NATURAL, QUADS, PAIRS = -1, 0, 1, 2, 3
_Q4_0, _Q4_1 = int(GgmlType.Q4_0), int(GgmlType.Q4_1)
_Q4_K, _Q5_K = int(GgmlType.Q4_K), int(GgmlType.Q5_K)
_F32, _F16, _BF16 = int(GgmlType.F32), int(GgmlType.F16), int(GgmlType.BF16)


def _group(e: Emitter, x: ir.Value, index: ir.Value, scales: ir.Value) -> ir.Value:
    """Group `index` of 32 floats as <32 x i16>; writes its scale and sum."""
    values = e.load(e.b.add(x, e.b.shl(index, e.i64(7))), F32, 32)
    peak = e.largest(e.unary("fabs", values))
    positive = e.b.fcmp_ordered(">", peak, ir.Constant(F32, 1e-30))
    inverse = e.b.select(positive, e.b.fdiv(ir.Constant(F32, PEAK), peak), ir.Constant(F32, 0.0))
    scaled = e.unary("rint", e.b.fmul(values, e.broadcast(inverse, 32)))
    whole = e.b.fptosi(scaled, ir.VectorType(I32, 32))
    # 0 * x is NaN for what is not finite, so that damage reaches the logits and is seen there.
    poison = e.sum_floats(e.b.fmul(values, e.splat(F32, 32, 0.0)))
    scale = e.b.fadd(e.b.fmul(peak, ir.Constant(F32, 1.0 / PEAK)), poison)
    place = e.b.add(scales, e.b.shl(index, e.i64(3)))
    e.store(scale, place)
    e.store(e.b.fmul(scale, e.b.sitofp(e.sum_integers(whole), F32)), e.at(place, 4))
    return e.b.trunc(whole, ir.VectorType(I16, 32))


def _store_split(e: Emitter, group: ir.Value, q: ir.Value, index: ir.Value) -> None:
    """High and low bytes of a group to its places in a quad."""
    bytes_ = ir.VectorType(I8, 32)
    high = e.b.trunc(e.shift_right(group, 8), bytes_)
    low = e.b.trunc(group, bytes_)
    quad = e.b.mul(e.b.udiv(index, e.i64(4)), e.i64(2 * QUAD))
    place = e.b.add(e.b.add(q, quad), e.b.shl(e.b.urem(index, e.i64(4)), e.i64(4)))
    for number, part in enumerate((high, low)):
        e.store(e.pick(part, range(16)), e.at(place, 128 * number))
        e.store(e.pick(part, range(16, 32)), e.at(place, 128 * number + 64))


@intrinsic
def quantise_natural(typingctx: Any, x: Any, q: Any, scales: Any, cols: Any) -> Any:
    """`cols` // 32 groups of float32 at `x`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder)
        with cgutils.for_range(e.b, e.b.udiv(args[3], e.i64(32)), intp=I64) as loop:
            group = _group(e, args[0], loop.index, args[2])
            e.store(group, e.b.add(args[1], e.b.shl(loop.index, e.i64(6))))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@intrinsic
def quantise_quads(typingctx: Any, x: Any, q: Any, scales: Any, cols: Any) -> Any:
    """`cols` // 32 groups of float32 at `x`, and zero groups up to a whole quad."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder)
        groups = e.b.udiv(args[3], e.i64(32))
        with cgutils.for_range(e.b, groups, intp=I64) as loop:
            _store_split(e, _group(e, args[0], loop.index, args[2]), args[1], loop.index)
        missing = e.b.and_(e.b.sub(e.i64(0), groups), e.i64(3))
        with cgutils.for_range(e.b, missing, intp=I64) as loop:
            index = e.b.add(groups, loop.index)
            _store_split(e, e.splat(I16, 32, 0), args[1], index)
            e.store(e.splat(F32, 2, 0.0), e.b.add(args[2], e.b.shl(index, e.i64(3))))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@intrinsic
def quantise_pairs(typingctx: Any, x: Any, q: Any, scales: Any, cols: Any) -> Any:
    """`cols` // 32 groups of float32 at `x`; `cols` is a multiple of 128."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder)
        with cgutils.for_range(e.b, e.b.udiv(args[3], e.i64(32)), intp=I64) as loop:
            group = _group(e, args[0], loop.index, args[2])
            quad = e.b.shl(e.b.udiv(loop.index, e.i64(4)), e.i64(8))
            side = e.b.shl(e.b.and_(loop.index, e.i64(1)), e.i64(6))
            second = e.b.shl(e.b.and_(loop.index, e.i64(2)), e.i64(4))
            place = e.b.add(e.b.add(args[1], quad), e.b.add(side, second))
            bytes_ = ir.VectorType(I8, 32)
            e.store(e.b.trunc(e.shift_right(group, 8), bytes_), place)
            e.store(e.b.trunc(group, bytes_), e.at(place, 128))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@intrinsic
def reads_bytes(typingctx: Any) -> Any:
    """1 when this host's kernels of 4 and 5 bits take activations by bytes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(I64, int(has_byte_products()))

    return types.int64(), codegen


@inlined
def layout_of(kind):
    """The layout that rows of `kind` (a GgmlType number) are multiplied with."""
    if kind == _F32 or kind == _F16 or kind == _BF16:
        return FLOAT
    if (kind == _Q4_0 or kind == _Q4_1) and reads_bytes() == 1:
        return QUADS
    if (kind == _Q4_K or kind == _Q5_K) and reads_bytes() == 1:
        return PAIRS
    return NATURAL


@inlined
def quantise_row(layout, x, q, scales, cols):
    """One token's float32 activations into `layout`."""
    if layout == QUADS:
        quantise_quads(x, q, scales, cols)
    elif layout == PAIRS:
        quantise_pairs(x, q, scales, cols)
    elif layout == NATURAL:
        quantise_natural(x, q, scales, cols)
