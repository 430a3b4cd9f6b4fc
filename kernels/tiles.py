"""Small matrix products for compiled code: register tiles over integer addresses, in float32 and by bfloat16 pairs.

The left matrix is read one number (or pair) at a time and may have any strides; rows of the right one and of the
result are contiguous. Sizes: the result has a multiple of 16 columns.
"""
# mypy: allow-untyped-defs, allow-untyped-decorators

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from neuron.kernels.jit import inlined
from neuron.kernels.quant.emit import F32, I32, I64, Emitter, host_features
from neuron.kernels.quant.memory import keep_apart, load_f32, store_f32

_LANES = 16
_WIDE = ir.VectorType(F32, _LANES)


def _multiply_add(e: Emitter, pairs: bool, a: ir.Value, b: ir.Value, total: ir.Value) -> ir.Value:
    """total + a * b in 16 lanes; with `pairs`, a and b are i32 lanes that hold two bfloat16 each."""
    if not pairs:
        return e.fma(a, b, total)
    if "avx512bf16" in host_features():
        whole = ir.VectorType(I32, _LANES)
        call = e._intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", _WIDE, [_WIDE, whole, whole])
        return e.b.call(call, [total, a, b])
    for take in (_low, _high):
        total = e.fma(take(e, a), take(e, b), total)
    return total


def _low(e: Emitter, pairs: ir.Value) -> ir.Value:
    return e.b.bitcast(e.shift_left(pairs, 16), _WIDE)


def _high(e: Emitter, pairs: ir.Value) -> ir.Value:
    return e.b.bitcast(e.b.and_(pairs, e.splat(I32, _LANES, 0xFFFF0000)), _WIDE)


def _tile(rows: int, vectors: int, pairs: bool) -> Any:
    """tile(a, a_row, a_step, b, b_row, count, c, c_row, alpha, beta): `rows` x 16 `vectors` numbers of the result.

    c = beta * c + alpha * a . b over `count` numbers (or pairs); steps in bytes. c is not read when beta is 0.
    """
    element = I32 if pairs else F32

    def tile(
        typingctx: Any,
        a: Any,
        a_row: Any,
        a_step: Any,
        b: Any,
        b_row: Any,
        count: Any,
        c: Any,
        c_row: Any,
        alpha: Any,
        beta: Any,
    ) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            e = Emitter(builder)
            a_at, a_row_, a_step_, b_at, b_row_, total, c_at, c_row_, alpha_, beta_ = args
            sums = [
                [cgutils.alloca_once_value(e.b, e.splat(F32, _LANES, 0.0)) for _ in range(vectors)] for _ in range(rows)
            ]
            places = [e.b.add(a_at, e.b.mul(a_row_, e.i64(r))) for r in range(rows)]
            with cgutils.for_range(e.b, total, intp=I64) as loop:
                right = e.b.add(b_at, e.b.mul(loop.index, b_row_))
                values = [e.load(e.at(right, 64 * v), element, _LANES) for v in range(vectors)]
                offset = e.b.mul(loop.index, a_step_)
                for r in range(rows):
                    one = e.broadcast(e.load(e.b.add(places[r], offset), element, 1, 4), _LANES)
                    for v in range(vectors):
                        e.b.store(_multiply_add(e, pairs, one, values[v], e.b.load(sums[r][v])), sums[r][v])
            factor = e.broadcast(alpha_, _LANES)
            fresh = e.b.fcmp_ordered("==", beta_, ir.Constant(F32, 0.0))
            kept = e.broadcast(beta_, _LANES)
            with e.b.if_else(fresh) as (then, otherwise):
                for branch, keeps in ((then, False), (otherwise, True)):
                    with branch:
                        for r in range(rows):
                            for v in range(vectors):
                                place = e.b.add(e.b.add(c_at, e.b.mul(c_row_, e.i64(r))), e.i64(64 * v))
                                value = e.b.fmul(factor, e.b.load(sums[r][v]))
                                if keeps:
                                    value = e.fma(kept, e.load(place, F32, _LANES), value)
                                e.store(value, place)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8, types.float32, types.float32), codegen

    return intrinsic(tile)


def _product(pairs: bool, rows: int) -> Any:
    wide, narrow = _tile(rows, 4, pairs), _tile(rows, 1, pairs)
    one_wide, one_narrow = _tile(1, 4, pairs), _tile(1, 1, pairs)

    def product(m, n, count, a, a_row, a_step, b, b_row, c, c_row, alpha, beta):
        keep_apart()
        whole = m // rows * rows
        column = 0
        while column < n:
            right, out = b + 4 * column, c + 4 * column
            if n - column >= 64:
                for r in range(0, whole, rows):
                    wide(a + r * a_row, a_row, a_step, right, b_row, count, out + r * c_row, c_row, alpha, beta)
                for r in range(whole, m):
                    one_wide(a + r * a_row, a_row, a_step, right, b_row, count, out + r * c_row, c_row, alpha, beta)
                column += 64
            else:
                for r in range(0, whole, rows):
                    narrow(a + r * a_row, a_row, a_step, right, b_row, count, out + r * c_row, c_row, alpha, beta)
                for r in range(whole, m):
                    one_narrow(a + r * a_row, a_row, a_step, right, b_row, count, out + r * c_row, c_row, alpha, beta)
                column += 16

    return inlined(product)


#: product(m, n, count, a, a_row, a_step, b, b_row, c, c_row, alpha, beta): c [m, n] = beta c + alpha a . b.
product_f32 = _product(False, 4)
product_pairs = _product(True, 6)


@intrinsic
def transpose_words(typingctx: Any, source: Any, source_row: Any, out: Any, out_row: Any) -> Any:
    """16 x 16 words of 32 bits at `source` to `out`; rows are so many bytes apart."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder)
        source_at, source_step, out_at, out_step = args
        rows = [e.load(e.b.add(source_at, e.b.mul(source_step, e.i64(r))), I32, 16) for r in range(16)]
        # In four rounds rows r and r + distance swap their blocks of `distance` off the diagonal.
        for distance in (1, 2, 4, 8):
            for r in range(16):
                if r & distance:
                    continue
                first, second = rows[r], rows[r + distance]
                low = [16 + lane - distance if lane & distance else lane for lane in range(16)]
                high = [16 + lane if lane & distance else lane + distance for lane in range(16)]
                rows[r], rows[r + distance] = _mix(e, first, second, low), _mix(e, first, second, high)
        for r, row in enumerate(rows):
            e.store(row, e.b.add(out_at, e.b.mul(out_step, e.i64(r))))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@inlined
def transpose(source, source_row, rows, words, out, out_row):
    """`rows` (a multiple of 16) x `words` words of 32 bits at `source` to `out`; rows are so many bytes apart."""
    whole = words // 16 * 16
    for k in range(0, whole, 16):
        for r in range(0, rows, 16):
            transpose_words(source + r * source_row + 4 * k, source_row, out + k * out_row + 4 * r, out_row)
    for k in range(whole, words):
        for r in range(rows):
            store_f32(out + k * out_row + 4 * r, load_f32(source + r * source_row + 4 * k))


def _mix(e: Emitter, first: ir.Value, second: ir.Value, lanes: list[int]) -> ir.Value:
    mask = ir.Constant(ir.VectorType(I32, 16), [ir.Constant(I32, lane) for lane in lanes])
    return e.b.shuffle_vector(first, second, mask)


@intrinsic
def fetch(typingctx: Any, address: Any, size: Any) -> Any:
    """Ask for the cache lines of `size` bytes, which need not be there to be read."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder)
        pointer = ir.IntType(8).as_pointer()
        name = "llvm.prefetch.p0"
        call = builder.module.globals.get(name) or ir.Function(
            builder.module, ir.FunctionType(ir.VoidType(), [pointer, I32, I32, I32]), name=name
        )
        lines = e.b.udiv(e.b.add(args[1], e.i64(63)), e.i64(64))
        with cgutils.for_range(e.b, lines, intp=I64) as loop:
            place = e.b.add(args[0], e.b.shl(loop.index, e.i64(6)))
            hints = [ir.Constant(I32, value) for value in (0, 2, 1)]
            e.b.call(call, [e.b.inttoptr(place, pointer), *hints])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen
