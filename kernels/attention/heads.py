"""Vector code of a step's attention: a few query heads that share keys and values, met by one read of the cache.

Numba intrinsics over integer addresses, for heads of whole vectors; float16 or float32 caches.
"""
# mypy: allow-untyped-defs, allow-untyped-decorators

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.jit import inlined
from neuron.kernels.quant.blocks import float_group
from neuron.kernels.quant.emit import F32, I32, I64, Emitter
from neuron.kernels.quant.memory import keep_apart

_LANES = 16
#: Heads whose sums fit into registers; positions whose scores are made together.
HEADS, POSITIONS = 4, 4
_F16 = int(GgmlType.F16)


def _sum_four(e: Emitter, vectors: list[ir.Value]) -> ir.Value:
    """<4 x float>: the sums of four <16 x float>."""

    def mixed(a: ir.Value, b: ir.Value, lanes: list[int]) -> ir.Value:
        mask = ir.Constant(ir.VectorType(I32, _LANES), [ir.Constant(I32, lane) for lane in lanes])
        return e.b.shuffle_vector(a, b, mask)

    def folded(a: ir.Value, b: ir.Value, distance: int) -> ir.Value:
        low = [lane + _LANES - distance if lane & distance else lane for lane in range(_LANES)]
        high = [lane + _LANES if lane & distance else lane + distance for lane in range(_LANES)]
        return e.b.fadd(mixed(a, b, low), mixed(a, b, high))

    a, b, c, d = vectors
    quarters = folded(folded(a, b, 1), folded(c, d, 1), 2)
    halves = e.b.fadd(e.pick(quarters, range(8)), e.pick(quarters, range(8, 16)))
    return e.b.fadd(e.pick(halves, range(4)), e.pick(halves, range(4, 8)))


def _scorer(kind: GgmlType, heads: int) -> Any:
    def score(
        typingctx: Any,
        q: Any,
        q_step: Any,
        keys: Any,
        step: Any,
        dim: Any,
        count: Any,
        scale: Any,
        out: Any,
        out_step: Any,
        coming: Any,
    ) -> Any:
        """out[g, p] = scale * q[g] . keys[p] for `count` positions, rounded up to POSITIONS; all readable.

        Meanwhile as much memory is fetched at `coming`, into the second cache: the first is too small for a tile.
        """

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            e = Emitter(builder)
            q_at, q_row, keys_at, key_row, width, total, factor, out_at, out_row, coming_at = args
            sums = [
                [cgutils.alloca_once(e.b, ir.VectorType(F32, _LANES)) for _ in range(POSITIONS)] for _ in range(heads)
            ]
            groups = e.b.udiv(e.b.add(total, e.i64(POSITIONS - 1)), e.i64(POSITIONS))
            with cgutils.for_range(e.b, groups, intp=I64) as outer:
                first = e.b.mul(outer.index, e.i64(POSITIONS))
                rows = [e.b.add(keys_at, e.b.mul(e.b.add(first, e.i64(p)), key_row)) for p in range(POSITIONS)]
                for head in sums:
                    for place in head:
                        e.b.store(e.splat(F32, _LANES, 0.0), place)
                with cgutils.for_range(e.b, e.b.udiv(width, e.i64(_LANES)), intp=I64) as loop:
                    offset = e.b.mul(loop.index, e.i64(_LANES * kind.type_size))
                    done = e.b.add(e.b.mul(first, key_row), e.b.mul(offset, e.i64(POSITIONS)))
                    e.prefetch(e.b.add(coming_at, done), POSITIONS * _LANES * kind.type_size, level=2)
                    values = [float_group(e, kind, e.b.add(row, offset), _LANES) for row in rows]
                    column = e.b.add(q_at, e.b.mul(loop.index, e.i64(_LANES * 4)))
                    for g, head in enumerate(sums):
                        query = e.load(e.b.add(column, e.b.mul(q_row, e.i64(g))), F32, _LANES)
                        for value, place in zip(values, head, strict=True):
                            e.b.store(e.fma(value, query, e.b.load(place)), place)
                for g, head in enumerate(sums):
                    found = _sum_four(e, [e.b.load(place) for place in head])
                    place = e.b.add(e.b.add(out_at, e.b.mul(out_row, e.i64(g))), e.b.shl(first, e.i64(2)))
                    e.store(e.b.fmul(found, e.broadcast(factor, POSITIONS)), place, 4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6, types.float32, *[types.int64] * 3), codegen

    return intrinsic(score)


def _mixer(kind: GgmlType, heads: int, vectors: int) -> Any:
    def mix(
        typingctx: Any,
        weights: Any,
        weights_step: Any,
        values: Any,
        step: Any,
        count: Any,
        out: Any,
        out_step: Any,
        coming: Any,
    ) -> Any:
        """out[g] += sum over p of weights[g, p] * values[p], 16 `vectors` columns. `coming`: see _scorer."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            e = Emitter(builder)
            weights_at, weights_row, values_at, value_row, total, out_at, out_row, coming_at = args
            width = vectors * _LANES * kind.type_size
            places = [
                [e.b.add(e.b.add(out_at, e.b.mul(out_row, e.i64(g))), e.i64(64 * v)) for v in range(vectors)]
                for g in range(heads)
            ]
            sums = [[cgutils.alloca_once(e.b, ir.VectorType(F32, _LANES)) for _ in row] for row in places]
            for row, held in zip(places, sums, strict=True):
                for place, total_at in zip(row, held, strict=True):
                    e.b.store(e.load(place, F32, _LANES), total_at)
            with cgutils.for_range(e.b, total, intp=I64) as loop:
                row = e.b.add(values_at, e.b.mul(loop.index, value_row))
                e.prefetch(e.b.add(coming_at, e.b.mul(loop.index, e.i64(width))), width, level=2)
                found = [float_group(e, kind, e.at(row, v * _LANES * kind.type_size), _LANES) for v in range(vectors)]
                for g, held in enumerate(sums):
                    place = e.b.add(e.b.add(weights_at, e.b.mul(weights_row, e.i64(g))), e.b.shl(loop.index, e.i64(2)))
                    weight = e.broadcast(e.load(place, F32, 1, 4), _LANES)
                    for value, total_at in zip(found, held, strict=True):
                        e.b.store(e.fma(value, weight, e.b.load(total_at)), total_at)
            for row, held in zip(places, sums, strict=True):
                for place, total_at in zip(row, held, strict=True):
                    e.store(e.b.load(total_at), place)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8), codegen

    return intrinsic(mix)


def _for_kind(kind: GgmlType) -> tuple[Any, Any]:
    score_1, score_2, score_3, score_4 = (_scorer(kind, heads) for heads in range(1, HEADS + 1))
    wide_1, wide_2, wide_3, wide_4 = (_mixer(kind, heads, 4) for heads in range(1, HEADS + 1))
    narrow_1, narrow_2, narrow_3, narrow_4 = (_mixer(kind, heads, 1) for heads in range(1, HEADS + 1))
    size = kind.type_size

    def score(heads, q, q_step, keys, step, dim, count, scale, out, out_step, coming):
        if heads == 4:
            score_4(q, q_step, keys, step, dim, count, scale, out, out_step, coming)
        elif heads == 3:
            score_3(q, q_step, keys, step, dim, count, scale, out, out_step, coming)
        elif heads == 2:
            score_2(q, q_step, keys, step, dim, count, scale, out, out_step, coming)
        else:
            score_1(q, q_step, keys, step, dim, count, scale, out, out_step, coming)

    def mix(heads, weights, weights_step, values, step, dim, count, out, out_step, coming):
        column = 0
        while column < dim:
            source, target, part = values + column * size, out + column * 4, coming + column * size * count
            if dim - column >= 64:
                if heads == 4:
                    wide_4(weights, weights_step, source, step, count, target, out_step, part)
                elif heads == 3:
                    wide_3(weights, weights_step, source, step, count, target, out_step, part)
                elif heads == 2:
                    wide_2(weights, weights_step, source, step, count, target, out_step, part)
                else:
                    wide_1(weights, weights_step, source, step, count, target, out_step, part)
                column += 64
            else:
                if heads == 4:
                    narrow_4(weights, weights_step, source, step, count, target, out_step, part)
                elif heads == 3:
                    narrow_3(weights, weights_step, source, step, count, target, out_step, part)
                elif heads == 2:
                    narrow_2(weights, weights_step, source, step, count, target, out_step, part)
                else:
                    narrow_1(weights, weights_step, source, step, count, target, out_step, part)
                column += 16

    return inlined(score), inlined(mix)


_score_f16, _mix_f16 = _for_kind(GgmlType.F16)
_score_f32, _mix_f32 = _for_kind(GgmlType.F32)


@inlined
def score_heads(kind, heads, q, q_step, keys, step, dim, count, scale, out, out_step, coming):
    """Scores of `heads` <= HEADS queries, see _scorer; `dim` is a multiple of 16."""
    keep_apart()
    if kind == _F16:
        _score_f16(heads, q, q_step, keys, step, dim, count, scale, out, out_step, coming)
    else:
        _score_f32(heads, q, q_step, keys, step, dim, count, scale, out, out_step, coming)


@inlined
def mix_heads(kind, heads, weights, weights_step, values, step, dim, count, out, out_step, coming):
    """Add weighted values to the sums of `heads` queries, see _mixer."""
    keep_apart()
    if kind == _F16:
        _mix_f16(heads, weights, weights_step, values, step, dim, count, out, out_step, coming)
    else:
        _mix_f32(heads, weights, weights_step, values, step, dim, count, out, out_step, coming)
