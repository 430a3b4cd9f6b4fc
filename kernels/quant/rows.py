"""Row kernels of every stored type, as Numba intrinsics: dot product with a row, a row as float32 or bfloat16.

Quantised rows take activations as int16 with a float scale and sum per 32 values (quant.activations); float rows
take float32. All pointers are integers; nothing is checked here.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.quant.blocks import UNPACK, Group, float_group
from neuron.kernels.quant.byte_rows import byte_dot
from neuron.kernels.quant.emit import F32, I16, I32, I64, Emitter, has_byte_products, host_features

_LANES = 16


def _make(body: Callable[..., ir.Value | None], arguments: int, returns_float: bool) -> Any:
    """An intrinsic of `arguments` int64 values whose IR `body` writes."""
    result = types.float32 if returns_float else types.void

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        outcome = body(Emitter(builder), *values)
        return context.get_dummy_value() if outcome is None else outcome

    if arguments == 4:

        def four(typingctx: Any, a: Any, b: Any, c: Any, n: Any) -> Any:
            return result(*[types.int64] * 4), codegen

        return intrinsic(four)

    if arguments == 3:

        def three(typingctx: Any, a: Any, b: Any, n: Any) -> Any:
            return result(*[types.int64] * 3), codegen

        return intrinsic(three)

    raise ValueError(f"no intrinsic of {arguments} arguments")


def _lane_scale(e: Emitter, pair: tuple[ir.Value, ir.Value], factor: ir.Value) -> ir.Value:
    """Scales of 16 lanes of pair products: lanes 0-7 belong to the first 16 weights, 8-15 to the last."""
    if pair[0] is pair[1]:
        return e.b.fmul(e.broadcast(pair[0], _LANES), e.broadcast(factor, _LANES))
    return e.b.fmul(e.halves(pair[0], pair[1], _LANES), e.broadcast(factor, _LANES))


def _accumulate(
    e: Emitter, group: Group, index: ir.Value, pointers: tuple[ir.Value, ...], sums: list[ir.Value]
) -> None:
    """Add one group of 32 to `sums` = [<16 x float>, float]. `pointers`: the activations' q and scales."""
    quants, scales = pointers
    lanes = ir.VectorType(F32, _LANES)
    activation = e.load(e.b.add(quants, e.b.shl(index, e.i64(6))), I16, 32)
    place = e.b.add(scales, e.b.shl(index, e.i64(3)))
    factor = e.load(place, F32)
    products = e.b.sitofp(e.pair_products(group.q, activation), lanes)
    sums[0] = e.fma(products, _lane_scale(e, group.scale, factor), sums[0])
    if group.offset is None:
        return
    if group.offset[0] is group.offset[1]:
        sums[1] = e.fma(group.offset[0], e.load(e.at(place, 4), F32), sums[1])
        return
    ones = e.pair_products(e.splat(I16, 32, 1), activation)
    offsets = _lane_scale(e, group.offset, factor)
    sums[0] = e.fma(e.b.sitofp(ones, lanes), offsets, sums[0])


def block_dot(kind: GgmlType) -> Any:
    """dot(weights, quants, scales, cols) -> float32 of one row of `kind`."""
    unpack = UNPACK[kind]
    groups = kind.block_size // 32
    unroll = 4 if groups == 1 else 1

    def body(e: Emitter, row: ir.Value, q: ir.Value, d: ir.Value, cols: ir.Value) -> ir.Value:
        if has_byte_products():
            return byte_dot(e, kind, row, q, d, cols)
        blocks = e.b.udiv(cols, e.i64(kind.block_size))
        lanes = ir.VectorType(F32, _LANES)
        vectors = [cgutils.alloca_once_value(e.b, e.splat(F32, _LANES, 0.0)) for _ in range(max(unroll, 2))]
        scalars = [cgutils.alloca_once_value(e.b, ir.Constant(F32, 0.0)) for _ in range(max(unroll, 2))]

        def one(block: ir.Value, copies: int) -> None:
            base = e.b.add(row, e.b.mul(block, e.i64(kind.type_size)))
            for copy in range(copies):
                found = unpack(e, e.at(base, copy * kind.type_size))
                for number, group in enumerate(found):
                    slot = (copy + number) % len(vectors)
                    sums = [e.b.load(vectors[slot]), e.b.load(scalars[slot])]
                    index = e.b.add(e.b.mul(block, e.i64(groups)), e.i64(copy * groups + number))
                    _accumulate(e, group, index, (q, d), sums)
                    e.b.store(sums[0], vectors[slot])
                    e.b.store(sums[1], scalars[slot])

        whole = e.b.udiv(blocks, e.i64(unroll))
        with cgutils.for_range(e.b, whole, intp=I64) as loop:
            one(e.b.mul(loop.index, e.i64(unroll)), unroll)
        if unroll > 1:
            done = e.b.mul(whole, e.i64(unroll))
            with cgutils.for_range(e.b, e.b.sub(blocks, done), intp=I64) as loop:
                one(e.b.add(done, loop.index), 1)
        total, offset = e.splat(F32, _LANES, 0.0), ir.Constant(F32, 0.0)
        assert total.type == lanes
        for vector, scalar in zip(vectors, scalars, strict=True):
            total = e.b.fadd(total, e.b.load(vector))
            offset = e.b.fadd(offset, e.b.load(scalar))
        return e.b.fadd(e.sum_floats(total), offset)

    return _make(body, 4, returns_float=True)


def _float_dot(kind: GgmlType) -> Any:
    """dot(weights, x, -, cols) -> float32 of one row stored as floats, with float32 activations."""
    width = kind.type_size

    def body(e: Emitter, row: ir.Value, x: ir.Value, _d: ir.Value, cols: ir.Value) -> ir.Value:
        sums = [cgutils.alloca_once_value(e.b, e.splat(F32, _LANES, 0.0)) for _ in range(4)]
        tail = cgutils.alloca_once_value(e.b, ir.Constant(F32, 0.0))

        def steps(start: ir.Value, copies: int) -> None:
            for copy in range(copies):
                index = e.b.add(start, e.i64(copy * _LANES))
                weights = float_group(e, kind, e.b.add(row, e.b.mul(index, e.i64(width))), _LANES)
                values = e.load(e.b.add(x, e.b.mul(index, e.i64(4))), F32, _LANES)
                e.b.store(e.fma(weights, values, e.b.load(sums[copy])), sums[copy])

        whole = e.b.udiv(cols, e.i64(4 * _LANES))
        with cgutils.for_range(e.b, whole, intp=I64) as loop:
            steps(e.b.mul(loop.index, e.i64(4 * _LANES)), 4)
        done = e.b.mul(whole, e.i64(4 * _LANES))
        sixteens = e.b.udiv(e.b.sub(cols, done), e.i64(_LANES))
        with cgutils.for_range(e.b, sixteens, intp=I64) as loop:
            steps(e.b.add(done, e.b.mul(loop.index, e.i64(_LANES))), 1)
        done = e.b.add(done, e.b.mul(sixteens, e.i64(_LANES)))
        with cgutils.for_range(e.b, e.b.sub(cols, done), intp=I64) as loop:
            index = e.b.add(done, loop.index)
            weight = float_group(e, kind, e.b.add(row, e.b.mul(index, e.i64(width))), 1)
            value = e.load(e.b.add(x, e.b.mul(index, e.i64(4))), F32)
            e.b.store(e.fma(weight, value, e.b.load(tail)), tail)
        total = e.b.fadd(e.b.fadd(e.b.load(sums[0]), e.b.load(sums[1])), e.b.fadd(e.b.load(sums[2]), e.b.load(sums[3])))
        return e.b.fadd(e.sum_floats(total), e.b.load(tail))

    return _make(body, 4, returns_float=True)


def _store_row(e: Emitter, values: ir.Value, out: ir.Value, index: ir.Value, to_bf16: bool) -> None:
    """Write floats at element `index` of a float32 or bfloat16 row."""
    if not to_bf16:
        e.store(values, e.b.add(out, e.b.shl(index, e.i64(2))))
        return
    e.store(round_to_bf16(e, values), e.b.add(out, e.b.shl(index, e.i64(1))))


def round_to_bf16(e: Emitter, values: ir.Value) -> ir.Value:
    """Floats -> bfloat16 bits, to nearest even; a NaN stays one. What is below 2**-126 may become 0."""
    vector = isinstance(values.type, ir.VectorType)
    lanes = values.type.count if vector else 1
    if lanes in (_LANES, 2 * _LANES) and "avx512bf16" in host_features():
        return e.narrow_to_bf16(values)
    wide = ir.VectorType(I32, lanes) if vector else I32
    narrow = ir.VectorType(I16, lanes) if vector else I16

    def constant(value: int) -> ir.Constant:
        return e.splat(I32, lanes, value) if vector else ir.Constant(I32, value)

    bits = e.b.bitcast(values, wide)
    even = e.b.and_(e.b.lshr(bits, constant(16)), constant(1))
    rounded = e.b.add(bits, e.b.add(even, constant(0x7FFF)))
    broken = e.b.fcmp_unordered("uno", values, values)
    rounded = e.b.select(broken, constant(0x7FC00000), rounded)
    return e.b.trunc(e.b.lshr(rounded, constant(16)), narrow)


def _expand(kind: GgmlType, to_bf16: bool) -> Any:
    """expand(weights, out, cols): one row as float32 or bfloat16."""

    def quantised(e: Emitter, row: ir.Value, out: ir.Value, cols: ir.Value) -> None:
        lanes = ir.VectorType(F32, 32)
        with cgutils.for_range(e.b, e.b.udiv(cols, e.i64(kind.block_size)), intp=I64) as loop:
            groups = UNPACK[kind](e, e.b.add(row, e.b.mul(loop.index, e.i64(kind.type_size))))
            for number, group in enumerate(groups):
                values = e.b.fmul(e.b.sitofp(group.q, lanes), e.halves(*group.scale, 32))
                if group.offset is not None:
                    values = e.b.fadd(values, e.halves(*group.offset, 32))
                index = e.b.add(e.b.mul(loop.index, e.i64(kind.block_size)), e.i64(32 * number))
                _store_row(e, values, out, index, to_bf16)

    def floats(e: Emitter, row: ir.Value, out: ir.Value, cols: ir.Value) -> None:
        width = kind.type_size
        whole = e.b.udiv(cols, e.i64(_LANES))
        with cgutils.for_range(e.b, whole, intp=I64) as loop:
            index = e.b.mul(loop.index, e.i64(_LANES))
            _store_row(e, float_group(e, kind, e.b.add(row, e.b.mul(index, e.i64(width))), _LANES), out, index, to_bf16)
        done = e.b.mul(whole, e.i64(_LANES))
        with cgutils.for_range(e.b, e.b.sub(cols, done), intp=I64) as loop:
            index = e.b.add(done, loop.index)
            _store_row(e, float_group(e, kind, e.b.add(row, e.b.mul(index, e.i64(width))), 1), out, index, to_bf16)

    return _make(quantised if kind in UNPACK else floats, 3, returns_float=False)


dot_f32, dot_f16, dot_bf16 = (_float_dot(k) for k in (GgmlType.F32, GgmlType.F16, GgmlType.BF16))
dot_q4_0, dot_q4_1 = block_dot(GgmlType.Q4_0), block_dot(GgmlType.Q4_1)
dot_q5_0, dot_q5_1 = block_dot(GgmlType.Q5_0), block_dot(GgmlType.Q5_1)
dot_q8_0 = block_dot(GgmlType.Q8_0)
dot_q2_k, dot_q3_k, dot_q4_k = (block_dot(k) for k in (GgmlType.Q2_K, GgmlType.Q3_K, GgmlType.Q4_K))
dot_q5_k, dot_q6_k = block_dot(GgmlType.Q5_K), block_dot(GgmlType.Q6_K)
EXPAND = {(kind, to_bf16): _expand(kind, to_bf16) for kind in GgmlType for to_bf16 in (False, True)}
