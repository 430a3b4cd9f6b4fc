# mypy: allow-untyped-defs, allow-untyped-decorators
"""Activations as int16 groups of 32 with a float scale and sum each, in the layout that a row kernel reads.

NATURAL: int16 in order; scales: pairs (scale, scale * sum of the group) float32.
BYTES: per 64 values their high bytes, then their low bytes, both signed (value = 256 * high + low), filled up with
zeros; scales: those pairs, and behind all of them scale * sum of each 16 values.
FLOAT: nothing.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.jit import inlined
from neuron.kernels.quant.byte_rows import sums_address
from neuron.kernels.quant.byte_values import CHUNK
from neuron.kernels.quant.emit import F32, I8, I16, I32, I64, Emitter, has_byte_products

#: The largest magnitude of a group becomes this: 127 * 256 + 127.
PEAK = 32639.0
NONE, FLOAT, NATURAL, BYTES = -1, 0, 1, 2
_F32, _F16, _BF16 = int(GgmlType.F32), int(GgmlType.F16), int(GgmlType.BF16)


def padded(cols: int) -> int:
    """Values of one row's activations with those that fill it up."""
    return -(-cols // CHUNK) * CHUNK


def quants_bytes(cols: int) -> int:
    """Size of one row's quantised activations, in any layout."""
    return 2 * padded(cols)


def scales_bytes(cols: int) -> int:
    """Size of their scales and sums, in any layout."""
    return padded(cols) // 2


def _group(e: Emitter, x: ir.Value, index: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Group `index` of 32 floats as <32 x i32>, and its scale."""
    values = e.load(e.b.add(x, e.b.shl(index, e.i64(7))), F32, 32)
    peak = e.largest(e.unary("fabs", values))
    positive = e.b.fcmp_ordered(">", peak, ir.Constant(F32, 1e-30))
    inverse = e.b.select(positive, e.b.fdiv(ir.Constant(F32, PEAK), peak), ir.Constant(F32, 0.0))
    scaled = e.unary("rint", e.b.fmul(values, e.broadcast(inverse, 32)))
    whole = e.b.fptosi(scaled, ir.VectorType(I32, 32))
    # 0 * x is NaN for what is not finite, so that damage reaches the logits and is seen there.
    poison = e.sum_floats(e.b.fmul(values, e.splat(F32, 32, 0.0)))
    return whole, e.b.fadd(e.b.fmul(peak, ir.Constant(F32, 1.0 / PEAK)), poison)


@intrinsic
def quantise_natural(typingctx: Any, x: Any, q: Any, scales: Any, cols: Any) -> Any:
    """`cols` // 32 groups of float32 at `x`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder)
        with cgutils.for_range(e.b, e.b.udiv(args[3], e.i64(32)), intp=I64) as loop:
            whole, scale = _group(e, args[0], loop.index)
            place = e.b.add(args[2], e.b.shl(loop.index, e.i64(3)))
            e.store(scale, place)
            e.store(e.b.fmul(scale, e.b.sitofp(e.sum_integers(whole), F32)), e.at(place, 4))
            e.store(e.b.trunc(whole, ir.VectorType(I16, 32)), e.b.add(args[1], e.b.shl(loop.index, e.i64(6))))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@intrinsic
def quantise_bytes(typingctx: Any, x: Any, q: Any, scales: Any, cols: Any) -> Any:
    """`cols` // 32 groups of float32 at `x`, and a zero group where their number is odd."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder)
        groups = e.b.udiv(args[3], e.i64(32))
        sums = sums_address(e, args[2], args[3])

        def store(whole: ir.Value, scale: ir.Value, index: ir.Value) -> None:
            chunk = e.b.add(args[1], e.b.shl(e.b.lshr(index, e.i64(1)), e.i64(7)))
            place = e.b.add(chunk, e.b.shl(e.b.and_(index, e.i64(1)), e.i64(5)))
            # The low byte is signed: rounding, not cutting, leaves it between -128 and 127.
            high = e.b.ashr(e.plus(whole, 128), e.splat(I32, 32, 8))
            e.store(e.b.trunc(high, ir.VectorType(I8, 32)), place)
            e.store(e.b.trunc(whole, ir.VectorType(I8, 32)), e.at(place, CHUNK))
            place = e.b.shl(index, e.i64(3))
            first, last = (e.sum_integers(e.pick(whole, range(at, at + 16))) for at in (0, 16))
            e.store(scale, e.b.add(args[2], place))
            for total, address in (
                (e.b.add(first, last), e.at(e.b.add(args[2], place), 4)),
                (first, e.b.add(sums, place)),
                (last, e.at(e.b.add(sums, place), 4)),
            ):
                e.store(e.b.fmul(scale, e.b.sitofp(total, F32)), address)

        with cgutils.for_range(e.b, groups, intp=I64) as loop:
            store(*_group(e, args[0], loop.index), loop.index)
        with e.b.if_then(e.b.icmp_unsigned("!=", e.b.and_(groups, e.i64(1)), e.i64(0))):
            store(e.splat(I32, 32, 0), ir.Constant(F32, 0.0), groups)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@intrinsic
def reads_bytes(typingctx: Any) -> Any:
    """1 when this host's kernels of blocks take activations by bytes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(I64, int(has_byte_products()))

    return types.int64(), codegen


@inlined
def layout_of(kind):
    """The layout that rows of `kind` (a GgmlType number) are multiplied with."""
    if kind == _F32 or kind == _F16 or kind == _BF16:
        return FLOAT
    if reads_bytes() == 1:
        return BYTES
    return NATURAL


@inlined
def quantise_row(layout, x, q, scales, cols):
    """One token's float32 activations into `layout`."""
    if layout == BYTES:
        quantise_bytes(x, q, scales, cols)
    elif layout == NATURAL:
        quantise_natural(x, q, scales, cols)
