"""Vector code of attention on the CPU, as Numba intrinsics over integer addresses: softmax rows, packed values."""
# mypy: allow-untyped-defs, allow-untyped-decorators

import math
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from neuron.kernels.quant.emit import F32, I16, I32, I64, Emitter
from neuron.kernels.quant.rows import round_to_bf16
from neuron.kernels.quant.vector import exponential

_LANES = 16


def _present(e: Emitter, first: ir.Value, valid: ir.Value) -> ir.Value:
    """Which of the lanes first.. are below `valid`."""
    lanes = ir.Constant(ir.VectorType(I32, _LANES), [ir.Constant(I32, lane) for lane in range(_LANES)])
    left = e.b.trunc(e.b.sub(valid, first), I32)
    return e.b.icmp_signed("<", lanes, e.broadcast(left, _LANES))


@intrinsic
def peak(typingctx: Any, scores: Any, valid: Any) -> Any:
    """Largest of the first `valid` float32; read in whole vectors. NaN is passed over."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder)
        least = e.splat(F32, _LANES, -math.inf)
        best = cgutils.alloca_once_value(e.b, least)
        blocks = e.b.udiv(e.b.add(args[1], e.i64(_LANES - 1)), e.i64(_LANES))
        with cgutils.for_range(e.b, blocks, intp=I64) as loop:
            first = e.b.mul(loop.index, e.i64(_LANES))
            values = e.load(e.b.add(args[0], e.b.shl(first, e.i64(2))), F32, _LANES)
            values = e.b.select(_present(e, first, args[1]), values, least)
            held = e.b.load(best)
            e.b.store(e.b.select(e.b.fcmp_ordered(">", values, held), values, held), best)
        return e.largest(e.b.load(best))

    return types.float32(types.int64, types.int64), codegen


def _softener(narrow: bool) -> Any:
    def soften(typingctx: Any, scores: Any, valid: Any, cols: Any, highest: Any, out: Any) -> Any:
        """out = exp(scores - highest) of the first `valid` numbers, 0 up to `cols` (a multiple of 16); their sum.

        The numbers are summed as they are written, so that rounding leaves the weights' sum at one.
        """

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            e = Emitter(builder)
            total = cgutils.alloca_once_value(e.b, e.splat(F32, _LANES, 0.0))
            zero = e.splat(F32, _LANES, 0.0)
            with cgutils.for_range(e.b, e.b.udiv(args[2], e.i64(_LANES)), intp=I64) as loop:
                first = e.b.mul(loop.index, e.i64(_LANES))
                values = e.load(e.b.add(args[0], e.b.shl(first, e.i64(2))), F32, _LANES)
                values = exponential(e, e.b.fsub(values, e.broadcast(args[3], _LANES)))
                values = e.b.select(_present(e, first, args[1]), values, zero)
                if narrow:
                    bits = round_to_bf16(e, values)
                    e.store(bits, e.b.add(args[4], e.b.shl(first, e.i64(1))))
                    wide = e.shift_left(e.widen(bits, I32), 16)
                    values = e.b.bitcast(wide, ir.VectorType(F32, _LANES))
                else:
                    e.store(values, e.b.add(args[4], e.b.shl(first, e.i64(2))))
                e.b.store(e.b.fadd(e.b.load(total), values), total)
            return e.sum_floats(e.b.load(total))

        return types.float32(types.int64, types.int64, types.int64, types.float32, types.int64), codegen

    return intrinsic(soften)


soften_bf16, soften_f32 = _softener(True), _softener(False)


@intrinsic
def interleave(typingctx: Any, first: Any, second: Any, out: Any, count: Any) -> Any:
    """Words (first[i], second[i]) of two rows of 16-bit numbers; read and written in whole vectors of 16."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder)
        blocks = e.b.udiv(e.b.add(args[3], e.i64(_LANES - 1)), e.i64(_LANES))
        with cgutils.for_range(e.b, blocks, intp=I64) as loop:
            offset = e.b.mul(loop.index, e.i64(2 * _LANES))
            low, high = (e.widen(e.load(e.b.add(base, offset), I16, _LANES), I32) for base in args[:2])
            place = e.b.add(args[2], e.b.shl(offset, e.i64(1)))
            e.store(e.b.or_(low, e.shift_left(high, 16)), place)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen
