"""Vector code of Gated DeltaNet on the CPU, as Numba intrinsics over integer addresses: convolution, delta rule."""
# mypy: allow-untyped-defs, allow-untyped-decorators

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from neuron.kernels.quant.emit import F32, I32, I64, Emitter
from neuron.kernels.quant.rows import round_to_bf16
from neuron.kernels.quant.vector import exponential, sigmoid

#: Columns of the state that are held in registers at once.
_COLUMNS = 32
_LANES = 16
#: Width of the convolution in every model so far: its taps stay in registers.
_TAPS = 4


def _blocks(e: Emitter, count: ir.Value, width: int, body: Callable[[ir.Value, int], None]) -> None:
    """body(index, lanes) over `count` elements: `width` at a time, then one at a time."""
    whole = e.b.udiv(count, e.i64(width))
    with cgutils.for_range(e.b, whole, intp=I64) as loop:
        body(e.b.mul(loop.index, e.i64(width)), width)
    done = e.b.mul(whole, e.i64(width))
    with cgutils.for_range(e.b, e.b.sub(count, done), intp=I64) as loop:
        body(e.b.add(done, loop.index), 1)


def _place(e: Emitter, base: ir.Value, index: ir.Value) -> ir.Value:
    return e.b.add(base, e.b.shl(index, e.i64(2)))


def _spread(e: Emitter, scalar: ir.Value, lanes: int) -> ir.Value:
    return e.broadcast(scalar, lanes) if lanes > 1 else scalar


@intrinsic
def sigmoid_product(typingctx: Any, x: Any, gate: Any, out: Any, count: Any) -> Any:
    """out = x * sigmoid(gate), `count` floats."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder)

        def body(index: ir.Value, lanes: int) -> None:
            value = e.load(_place(e, args[0], index), F32, lanes, 4)
            gate_value = e.load(_place(e, args[1], index), F32, lanes, 4)
            e.store(e.b.fmul(value, sigmoid(e, gate_value)), _place(e, args[2], index), 4)

        _blocks(e, args[3], _LANES, body)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), codegen


@intrinsic
def conv_silu(typingctx: Any, ring: Any, weight: Any, step: Any, slot: Any, kernel: Any, out: Any, count: Any) -> Any:
    """out[c] = silu(sum over j of weight[j, c] * ring[(slot + 1 + j) % kernel, c]) for `count` channels.

    `ring` and `weight` are addresses of the first channel in their first rows, whose rows are `step` bytes apart.
    `slot` is the ring's row of the newest input.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder)
        ring_at, weight_at, row_step, newest, taps, out_at, total = args

        def body(index: ir.Value, lanes: int) -> None:
            start = e.splat(F32, lanes, 0.0) if lanes > 1 else ir.Constant(F32, 0.0)
            sums = cgutils.alloca_once(e.b, start.type)
            e.b.store(start, sums)
            with cgutils.for_range(e.b, taps, intp=I64) as loop:
                row = e.b.urem(e.b.add(e.b.add(newest, e.i64(1)), loop.index), taps)
                source = _place(e, e.b.add(ring_at, e.b.mul(row, row_step)), index)
                tap = _place(e, e.b.add(weight_at, e.b.mul(loop.index, row_step)), index)
                value = e.fma(e.load(source, F32, lanes, 4), e.load(tap, F32, lanes, 4), e.b.load(sums))
                e.b.store(value, sums)
            found = e.b.load(sums)
            e.store(e.b.fmul(found, sigmoid(e, found)), _place(e, out_at, index), 4)

        _blocks(e, total, _LANES, body)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 7), codegen


@intrinsic
def delta_rule(
    typingctx: Any, state: Any, q: Any, k: Any, v: Any, decay: Any, beta: Any, qk: Any, rows: Any, cols: Any, out: Any
) -> Any:
    """One token of one head. state float32 [rows, cols] in place; q, k [rows]; v, out [cols]; decay = exp(g); qk = q.k.

    The output is read as decay * q.S + qk * update, so that the state is read once before it is written.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder)
        state_at, q_at, k_at, v_at, decay_value, beta_value, qk_value, row_count, col_count, out_at = args
        step = e.b.shl(col_count, e.i64(2))

        def body(index: ir.Value, lanes: int) -> None:
            zero = e.splat(F32, lanes, 0.0) if lanes > 1 else ir.Constant(F32, 0.0)
            seen, read = (cgutils.alloca_once(e.b, zero.type) for _ in range(2))
            e.b.store(zero, seen)
            e.b.store(zero, read)
            column = _place(e, state_at, index)
            with cgutils.for_range(e.b, row_count, intp=I64) as loop:
                values = e.load(e.b.add(column, e.b.mul(loop.index, step)), F32, lanes, 4)
                key = _spread(e, e.load(_place(e, k_at, loop.index), F32, 1, 4), lanes)
                query = _spread(e, e.load(_place(e, q_at, loop.index), F32, 1, 4), lanes)
                e.b.store(e.fma(values, key, e.b.load(seen)), seen)
                e.b.store(e.fma(values, query, e.b.load(read)), read)
            kept = _spread(e, decay_value, lanes)
            wanted = e.load(_place(e, v_at, index), F32, lanes, 4)
            missing = e.b.fsub(wanted, e.b.fmul(kept, e.b.load(seen)))
            update = e.b.fmul(_spread(e, beta_value, lanes), missing)
            result = e.fma(_spread(e, qk_value, lanes), update, e.b.fmul(kept, e.b.load(read)))
            e.store(result, _place(e, out_at, index), 4)
            with cgutils.for_range(e.b, row_count, intp=I64) as loop:
                place = e.b.add(column, e.b.mul(loop.index, step))
                key = _spread(e, e.load(_place(e, k_at, loop.index), F32, 1, 4), lanes)
                faded = e.b.fmul(e.load(place, F32, lanes, 4), kept)
                e.store(e.fma(key, update, faded), place, 4)

        _blocks(e, col_count, _COLUMNS, body)
        return context.get_dummy_value()

    whole = [types.int64] * 4 + [types.float32] * 3 + [types.int64] * 3
    return types.void(*whole), codegen


@intrinsic
def pair_rows(typingctx: Any, first: Any, second: Any, out: Any, count: Any) -> Any:
    """Words of bfloat16 (first[i], second[i]) of two rows of `count` (a multiple of 16) float32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder)
        with cgutils.for_range(e.b, e.b.udiv(args[3], e.i64(_LANES)), intp=I64) as loop:
            index = e.b.mul(loop.index, e.i64(_LANES))
            rows = (e.load(_place(e, base, index), F32, _LANES, 4) for base in args[:2])
            low, high = (e.widen(round_to_bf16(e, row), I32) for row in rows)
            e.store(e.b.or_(low, e.shift_left(high, 16)), _place(e, args[2], index), 4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@intrinsic
def fade_row(typingctx: Any, total: Any, row: Any, factor: Any, lower: Any, mixing: Any) -> Any:
    """Row `row` of a chunk's two matrices times exp(total[row] - total[j]), `lower` times `factor` too.

    Rows of both at their addresses; kept up to the diagonal (`lower`: below it), zero from there to the block of 16.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder)
        total_at, row_, factor_, lower_at, mixing_at = args
        here = e.broadcast(e.load(_place(e, total_at, row_), F32, 1, 4), _LANES)
        wanted = e.broadcast(e.b.trunc(row_, I32), _LANES)
        lanes = ir.Constant(ir.VectorType(I32, _LANES), [ir.Constant(I32, lane) for lane in range(_LANES)])
        zero = e.splat(F32, _LANES, 0.0)
        blocks = e.b.add(e.b.lshr(row_, e.i64(4)), e.i64(1))
        with cgutils.for_range(e.b, blocks, intp=I64) as loop:
            first = e.b.shl(loop.index, e.i64(4))
            column = e.b.add(e.broadcast(e.b.trunc(first, I32), _LANES), lanes)
            # Above the diagonal the difference is positive and may overflow; those lanes are not taken.
            fading = exponential(e, e.b.fsub(here, e.load(_place(e, total_at, first), F32, _LANES, 4)))
            place = _place(e, lower_at, first)
            value = e.b.fmul(e.b.fmul(e.load(place, F32, _LANES, 4), fading), e.broadcast(factor_, _LANES))
            e.store(e.b.select(e.b.icmp_signed("<", column, wanted), value, zero), place, 4)
            place = _place(e, mixing_at, first)
            value = e.b.fmul(e.load(place, F32, _LANES, 4), fading)
            e.store(e.b.select(e.b.icmp_signed("<=", column, wanted), value, zero), place, 4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32, types.int64, types.int64), codegen


@intrinsic
def conv_rows(
    typingctx: Any,
    x: Any,
    x_row: Any,
    weight: Any,
    weight_row: Any,
    taps: Any,
    rows: Any,
    count: Any,
    out: Any,
    out_row: Any,
) -> Any:
    """out[t, c] = silu(sum over j of weight[j, c] * x[t + j, c]) for `rows` x `count` numbers; steps in bytes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder)
        x_at, x_step, weight_at, weight_step, tap_count, row_count, total, out_at, out_step = args

        def body(index: ir.Value, lanes: int) -> None:
            source, tap, target = (_place(e, base, index) for base in (x_at, weight_at, out_at))
            sums = cgutils.alloca_once_value(e.b, e.splat(F32, lanes, 0.0) if lanes > 1 else ir.Constant(F32, 0.0))

            def silu_to(found: ir.Value, t: ir.Value) -> None:
                e.store(e.b.fmul(found, sigmoid(e, found)), e.b.add(target, e.b.mul(t, out_step)), 4)

            with e.b.if_else(e.b.icmp_unsigned("==", tap_count, e.i64(_TAPS))) as (usual, other):
                with usual:
                    held = [e.load(e.b.add(tap, e.b.mul(weight_step, e.i64(j))), F32, lanes, 4) for j in range(_TAPS)]
                    with cgutils.for_range(e.b, row_count, intp=I64) as loop:
                        first = e.b.add(source, e.b.mul(loop.index, x_step))
                        rows_ = [e.load(e.b.add(first, e.b.mul(x_step, e.i64(j))), F32, lanes, 4) for j in range(_TAPS)]
                        found = e.b.fmul(rows_[0], held[0])
                        for value, factor in zip(rows_[1:], held[1:], strict=True):
                            found = e.fma(value, factor, found)
                        silu_to(found, loop.index)
                with other, cgutils.for_range(e.b, row_count, intp=I64) as loop:
                    e.b.store(e.splat(F32, lanes, 0.0) if lanes > 1 else ir.Constant(F32, 0.0), sums)
                    with cgutils.for_range(e.b, tap_count, intp=I64) as inner:
                        row = e.b.add(source, e.b.mul(e.b.add(loop.index, inner.index), x_step))
                        factor = e.load(e.b.add(tap, e.b.mul(inner.index, weight_step)), F32, lanes, 4)
                        e.b.store(e.fma(e.load(row, F32, lanes, 4), factor, e.b.load(sums)), sums)
                    silu_to(e.b.load(sums), loop.index)

        _blocks(e, total, _LANES, body)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 9), codegen
