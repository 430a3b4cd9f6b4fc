"""Vector helpers of the fused step, as Numba intrinsics over integer addresses: norms, softmax, SiLU, conversions."""
# mypy: allow-untyped-defs, allow-untyped-decorators

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.quant.blocks import float_group
from neuron.kernels.quant.emit import F16, F32, I32, I64, Emitter, host_features
from neuron.kernels.quant.rows import round_to_bf16

_LANES = 16

# Interpolation of 2**f at the Chebyshev points of [-0.5, 0.5], degree 6 (relative error below 3e-9).
_EXP2 = (1.0, 0.6931472067, 0.2402265092, 0.05550327227, 0.009618056678, 0.001340042818, 0.0001546144472)


def constant(value: float, like: ir.Value, kind: ir.Type = F32) -> ir.Constant:
    """`value` in as many lanes as `like` has."""
    if isinstance(like.type, ir.VectorType):
        lanes = like.type.count
        return ir.Constant(ir.VectorType(kind, lanes), [ir.Constant(kind, value)] * lanes)
    return ir.Constant(kind, value)


def exponential(e: Emitter, x: ir.Value) -> ir.Value:
    """exp(x) as 2**n * 2**f. Below -87 it is nearly or wholly 0; above 89 infinity; a NaN stays one."""
    if x.type == ir.VectorType(F32, _LANES) and "avx512f" in host_features():
        return _scaled_exponential(e, x)
    integers = ir.VectorType(I32, x.type.count) if isinstance(x.type, ir.VectorType) else I32
    scaled = e.b.fmul(x, constant(math.log2(math.e), x))
    bounded = e.b.select(e.b.fcmp_ordered("<", x, constant(88.0, x)), scaled, constant(126.0, x))
    bounded = e.b.select(e.b.fcmp_ordered(">", x, constant(-87.0, x)), bounded, constant(-126.0, x))
    whole = e.unary("rint", bounded)
    # x - n * ln2 in two steps keeps f exact for large x.
    rest = e.fma(whole, constant(-0.693359375, x), x)
    rest = e.fma(whole, constant(2.12194440e-4, x), rest)
    fraction = e.b.fmul(rest, constant(math.log2(math.e), x))
    value = constant(_EXP2[-1], x)
    for coefficient in reversed(_EXP2[:-1]):
        value = e.fma(value, fraction, constant(coefficient, x))
    biased = e.b.add(e.b.fptosi(whole, integers), constant(127, x, I32))
    value = e.b.fmul(value, e.b.bitcast(e.b.shl(biased, constant(23, x, I32)), x.type))
    value = e.b.select(e.b.fcmp_ordered(">", x, constant(88.0, x)), constant(math.inf, x), value)
    value = e.b.select(e.b.fcmp_ordered("<", x, constant(-87.0, x)), constant(0.0, x), value)
    return e.b.select(e.b.fcmp_unordered("uno", x, x), x, value)


def _scaled_exponential(e: Emitter, x: ir.Value) -> ir.Value:
    """The same with the CPU's own product with powers of two, which need no care at either end but infinity."""
    least, most = constant(-104.0, x), constant(89.0, x)
    bounded = e.b.select(e.b.fcmp_ordered(">", least, x), least, x)
    bounded = e.b.select(e.b.fcmp_ordered("<", most, bounded), most, bounded)
    # log2(e) in two parts keeps f exact for large x.
    high, low = constant(1.44269502, x), constant(1.92596299e-8, x)
    whole = e.unary("rint", e.b.fmul(bounded, high))
    fraction = e.fma(bounded, low, e.fma(bounded, high, e.b.fneg(whole)))
    value = constant(_EXP2[-1], x)
    for coefficient in reversed(_EXP2[:-1]):
        value = e.fma(value, fraction, constant(coefficient, x))
    return e.times_power_of_two(value, whole)


def sigmoid(e: Emitter, x: ir.Value) -> ir.Value:
    return e.b.fdiv(constant(1.0, x), e.b.fadd(constant(1.0, x), exponential(e, e.b.fneg(x))))


def _each(e: Emitter, count: ir.Value, body: Callable[[ir.Value, int], None]) -> None:
    """body(index, lanes) over `count` elements: 16 at a time, then one at a time."""
    whole = e.b.udiv(count, e.i64(_LANES))
    with cgutils.for_range(e.b, whole, intp=I64) as loop:
        body(e.b.mul(loop.index, e.i64(_LANES)), _LANES)
    done = e.b.mul(whole, e.i64(_LANES))
    with cgutils.for_range(e.b, e.b.sub(count, done), intp=I64) as loop:
        body(e.b.add(done, loop.index), 1)


def _float_at(e: Emitter, base: ir.Value, index: ir.Value, lanes: int) -> ir.Value:
    return e.load(e.b.add(base, e.b.shl(index, e.i64(2))), F32, lanes, 4)


def _put(e: Emitter, value: ir.Value, base: ir.Value, index: ir.Value) -> None:
    e.store(value, e.b.add(base, e.b.shl(index, e.i64(2))), 4)


def _spread(e: Emitter, scalar: ir.Value, lanes: int) -> ir.Value:
    return e.broadcast(scalar, lanes) if lanes > 1 else scalar


@intrinsic
def scaled_product(typingctx: Any, x: Any, weight: Any, factor: Any, out: Any, count: Any) -> Any:
    """out = x * factor * weight, element by element."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder)

        def body(index: ir.Value, lanes: int) -> None:
            value = e.b.fmul(_float_at(e, args[0], index, lanes), _spread(e, args[2], lanes))
            _put(e, e.b.fmul(value, _float_at(e, args[1], index, lanes)), args[3], index)

        _each(e, args[4], body)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32, types.int64, types.int64), codegen


@intrinsic
def add_to(typingctx: Any, x: Any, out: Any, count: Any) -> Any:
    """out += x."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder)

        def body(index: ir.Value, lanes: int) -> None:
            _put(e, e.b.fadd(_float_at(e, args[1], index, lanes), _float_at(e, args[0], index, lanes)), args[1], index)

        _each(e, args[2], body)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def silu_product(typingctx: Any, gate: Any, up: Any, out: Any, count: Any) -> Any:
    """out = gate * sigmoid(gate) * up."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder)

        def body(index: ir.Value, lanes: int) -> None:
            gate_value = _float_at(e, args[0], index, lanes)
            value = e.b.fmul(e.b.fmul(gate_value, sigmoid(e, gate_value)), _float_at(e, args[1], index, lanes))
            _put(e, value, args[2], index)

        _each(e, args[3], body)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), codegen


@intrinsic
def scale_by(typingctx: Any, out: Any, factor: Any, count: Any) -> Any:
    """out *= factor."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder)

        def body(index: ir.Value, lanes: int) -> None:
            _put(e, e.b.fmul(_float_at(e, args[0], index, lanes), _spread(e, args[1], lanes)), args[0], index)

        _each(e, args[2], body)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32, types.int64), codegen


@intrinsic
def largest(typingctx: Any, x: Any, count: Any) -> Any:
    """Largest of `count` (a multiple of 16) floats; NaN is passed over."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder)
        best = cgutils.alloca_once_value(e.b, e.splat(F32, _LANES, -math.inf))
        with cgutils.for_range(e.b, e.b.udiv(args[1], e.i64(_LANES)), intp=I64) as loop:
            values = _float_at(e, args[0], e.b.mul(loop.index, e.i64(_LANES)), _LANES)
            held = e.b.load(best)
            e.b.store(e.b.select(e.b.fcmp_ordered(">", values, held), values, held), best)
        return e.largest(e.b.load(best))

    return types.float32(types.int64, types.int64), codegen


@intrinsic
def exponentials(typingctx: Any, x: Any, peak: Any, count: Any) -> Any:
    """x = exp(x - peak) in place for `count` (a multiple of 16) floats; returns their sum."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder)
        total = cgutils.alloca_once_value(e.b, e.splat(F32, _LANES, 0.0))
        with cgutils.for_range(e.b, e.b.udiv(args[2], e.i64(_LANES)), intp=I64) as loop:
            index = e.b.mul(loop.index, e.i64(_LANES))
            values = exponential(e, e.b.fsub(_float_at(e, args[0], index, _LANES), e.broadcast(args[1], _LANES)))
            _put(e, values, args[0], index)
            e.b.store(e.b.fadd(e.b.load(total), values), total)
        return e.sum_floats(e.b.load(total))

    return types.float32(types.int64, types.float32, types.int64), codegen


def _adder(kind: GgmlType) -> Any:
    def add_scaled(typingctx: Any, x: Any, factor: Any, out: Any, count: Any) -> Any:
        """out (float32) += factor * x (`kind`)."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            e = Emitter(builder)

            def body(index: ir.Value, lanes: int) -> None:
                source = e.b.add(args[0], e.b.mul(index, e.i64(kind.type_size)))
                value = float_group(e, kind, source, lanes)
                _put(e, e.fma(value, _spread(e, args[1], lanes), _float_at(e, args[2], index, lanes)), args[2], index)

            _each(e, args[3], body)
            return context.get_dummy_value()

        return types.void(types.int64, types.float32, types.int64, types.int64), codegen

    return intrinsic(add_scaled)


def _narrower(kind: GgmlType) -> Any:
    def narrow(typingctx: Any, x: Any, out: Any, count: Any) -> Any:
        """Write `count` float32 as `kind`."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            e = Emitter(builder)

            def body(index: ir.Value, lanes: int) -> None:
                value = _float_at(e, args[0], index, lanes)
                if kind is GgmlType.F16:
                    value = e.b.fptrunc(value, ir.VectorType(F16, lanes) if lanes > 1 else F16)
                elif kind is GgmlType.BF16:
                    value = round_to_bf16(e, value)
                e.store(value, e.b.add(args[1], e.b.mul(index, e.i64(kind.type_size))))

            _each(e, args[2], body)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), codegen

    return intrinsic(narrow)


add_scaled_f32, add_scaled_f16, add_scaled_bf16 = (_adder(k) for k in (GgmlType.F32, GgmlType.F16, GgmlType.BF16))
narrow_f32, narrow_f16, narrow_bf16 = (_narrower(k) for k in (GgmlType.F32, GgmlType.F16, GgmlType.BF16))
