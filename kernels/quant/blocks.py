"""How each GGML block is unpacked with vector code: 32 small integers at a time, with the scale and offset of each.

A weight is `scale * q + offset`. Layouts follow ggml's block structs (ggml-common.h); the order of float operations is
that of the `gguf` package, so that both give the same float32 numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.quant.emit import F32, I1, I8, I16, I32, Emitter

Pair = tuple[ir.Value, ir.Value]


@dataclass(slots=True, frozen=True)
class Group:
    """32 weights in order. `scale` and `offset`: one float each for the first and the last 16 (the same or not)."""

    q: ir.Value
    scale: Pair
    offset: Pair | None = None


Unpack = Callable[[Emitter, ir.Value], list[Group]]


def _both(value: ir.Value) -> Pair:
    return (value, value)


def _nibbles(e: Emitter, address: ir.Value) -> ir.Value:
    """16 bytes -> 32 values: low nibbles, then high nibbles."""
    packed = e.load(address, I8, 16)
    return e.widen(e.join(e.mask(packed, 15), e.shift_right(packed, 4)), I16)


def _fifth_bits(e: Emitter, address: ir.Value) -> ir.Value:
    """32 bits -> 0 or 16 for each value."""
    bits = e.b.bitcast(e.load(address, I32), ir.VectorType(I1, 32))
    return e.b.select(bits, e.splat(I16, 32, 16), e.splat(I16, 32, 0))


def _q4_0(e: Emitter, block: ir.Value) -> list[Group]:
    return [Group(e.plus(_nibbles(e, e.at(block, 2)), -8), _both(e.load_half(block)))]


def _q4_1(e: Emitter, block: ir.Value) -> list[Group]:
    scale, least = e.load_half(block), e.load_half(e.at(block, 2))
    return [Group(_nibbles(e, e.at(block, 4)), _both(scale), _both(least))]


def _q5_0(e: Emitter, block: ir.Value) -> list[Group]:
    q = e.b.add(_nibbles(e, e.at(block, 6)), _fifth_bits(e, e.at(block, 2)))
    return [Group(e.plus(q, -16), _both(e.load_half(block)))]


def _q5_1(e: Emitter, block: ir.Value) -> list[Group]:
    q = e.b.add(_nibbles(e, e.at(block, 8)), _fifth_bits(e, e.at(block, 4)))
    return [Group(q, _both(e.load_half(block)), _both(e.load_half(e.at(block, 2))))]


def _q8_0(e: Emitter, block: ir.Value) -> list[Group]:
    return [Group(e.widen_signed(e.load(e.at(block, 2), I8, 32), I16), _both(e.load_half(block)))]


def _q2_k(e: Emitter, block: ir.Value) -> list[Group]:
    packed = e.load(block, I8, 16)
    scales = _products(e, e.mask(packed, 15), e.load_half(e.at(block, 80)))
    leasts = _products(e, e.shift_right(packed, 4), e.b.fneg(e.load_half(e.at(block, 82))))
    groups = []
    for index in range(8):
        half, shift = divmod(index, 4)
        packed = e.load(e.at(block, 16 + 32 * half), I8, 32)
        q = e.widen(e.mask(e.shift_right(packed, 2 * shift), 3), I16)
        groups.append(Group(q, _lanes(e, scales, index), _lanes(e, leasts, index)))
    return groups


def _q3_k(e: Emitter, block: ir.Value) -> list[Group]:
    scales = _products(e, _q3_scales(e, block), e.load_half(e.at(block, 108)), signed=True)
    high = e.load(block, I8, 32)
    groups = []
    for index in range(8):
        half, shift = divmod(index, 4)
        packed = e.load(e.at(block, 32 + 32 * half), I8, 32)
        low = e.mask(e.shift_right(packed, 2 * shift), 3)
        # A cleared high bit takes 4 away.
        bit = e.shift_left(e.mask(e.shift_right(high, index), 1), 2)
        q = e.widen_signed(e.plus(e.b.add(low, bit), -4), I16)
        groups.append(Group(q, _lanes(e, scales, index)))
    return groups


def _q3_scales(e: Emitter, block: ir.Value) -> ir.Value:
    """16 scales of 6 bits less 32, <16 x i8>: 4 low bits in 8 bytes of nibbles, 2 high bits in 4 more bytes."""
    low = e.load(e.at(block, 96), I8, 8)
    lows = e.join(e.mask(low, 15), e.shift_right(low, 4))
    top = e.load(e.at(block, 104), I8, 4)
    parts = [e.mask(e.shift_right(top, 2 * part), 3) for part in range(4)]
    highs = e.join(e.join(parts[0], parts[1]), e.join(parts[2], parts[3]))
    return e.plus(e.b.or_(lows, e.shift_left(highs, 4)), -32)


def _q4_k(e: Emitter, block: ir.Value) -> list[Group]:
    scales, leasts = six_bit_scales(e, block)
    groups = []
    for pair in range(4):
        packed = e.load(e.at(block, 16 + 32 * pair), I8, 32)
        for side, values in enumerate((e.mask(packed, 15), e.shift_right(packed, 4))):
            index = 2 * pair + side
            scale, least = e.lane(scales, index), e.lane(leasts, index)
            groups.append(Group(e.widen(values, I16), _both(scale), _both(least)))
    return groups


def _q5_k(e: Emitter, block: ir.Value) -> list[Group]:
    scales, leasts = six_bit_scales(e, block)
    high = e.load(e.at(block, 16), I8, 32)
    groups = []
    for pair in range(4):
        packed = e.load(e.at(block, 48 + 32 * pair), I8, 32)
        for side, values in enumerate((e.mask(packed, 15), e.shift_right(packed, 4))):
            index = 2 * pair + side
            bit = e.shift_left(e.mask(e.shift_right(high, index), 1), 4)
            scale, least = e.lane(scales, index), e.lane(leasts, index)
            groups.append(Group(e.widen(e.b.or_(values, bit), I16), _both(scale), _both(least)))
    return groups


def six_bit_scales(e: Emitter, block: ir.Value) -> tuple[ir.Value, ir.Value]:
    """d * scale and -dmin * min of the 8 groups of a Q4_K or Q5_K block, <8 x float> each.

    12 bytes: 6 low bits of scales 0-3, of mins 0-3, then nibbles of scales and mins 4-7, whose 2 high bits are the
    top bits of the first eight bytes.
    """
    first, second, third = (e.load(e.at(block, 4 + 4 * i), I8, 4) for i in range(3))
    late_scales = e.b.or_(e.mask(third, 15), e.shift_left(e.shift_right(first, 6), 4))
    late_leasts = e.b.or_(e.shift_right(third, 4), e.shift_left(e.shift_right(second, 6), 4))
    scales = e.join(e.mask(first, 63), late_scales)
    leasts = e.join(e.mask(second, 63), late_leasts)
    return (
        _products(e, scales, e.load_half(block)),
        _products(e, leasts, e.b.fneg(e.load_half(e.at(block, 2)))),
    )


def _q6_k(e: Emitter, block: ir.Value) -> list[Group]:
    scales = _products(e, e.load(e.at(block, 192), I8, 16), e.load_half(e.at(block, 208)), signed=True)
    groups = []
    for half in range(2):
        low = [e.load(e.at(block, 64 * half + 32 * side), I8, 32) for side in range(2)]
        high = e.load(e.at(block, 128 + 32 * half), I8, 32)
        for quarter in range(4):
            nibble = e.mask(low[quarter % 2], 15) if quarter < 2 else e.shift_right(low[quarter % 2], 4)
            top = e.shift_left(e.mask(e.shift_right(high, 2 * quarter), 3), 4)
            q = e.widen_signed(e.plus(e.b.or_(nibble, top), -32), I16)
            groups.append(Group(q, _lanes(e, scales, 4 * half + quarter)))
    return groups


def _products(e: Emitter, small: ir.Value, factor: ir.Value, signed: bool = False) -> ir.Value:
    """Small integers times a float, lane by lane."""
    wide = e.widen_signed(small, I32) if signed else e.widen(small, I32)
    floats = e.b.sitofp(wide, ir.VectorType(F32, wide.type.count))
    return e.b.fmul(floats, e.broadcast(factor, wide.type.count))


def _lanes(e: Emitter, vector: ir.Value, group: int) -> Pair:
    return (e.lane(vector, 2 * group), e.lane(vector, 2 * group + 1))


UNPACK: dict[GgmlType, Unpack] = {
    GgmlType.Q4_0: _q4_0,
    GgmlType.Q4_1: _q4_1,
    GgmlType.Q5_0: _q5_0,
    GgmlType.Q5_1: _q5_1,
    GgmlType.Q8_0: _q8_0,
    GgmlType.Q2_K: _q2_k,
    GgmlType.Q3_K: _q3_k,
    GgmlType.Q4_K: _q4_k,
    GgmlType.Q5_K: _q5_k,
    GgmlType.Q6_K: _q6_k,
}


def float_group(e: Emitter, kind: GgmlType, address: ir.Value, lanes: int) -> ir.Value:
    """`lanes` weights stored as F32, F16 or BF16, as floats."""
    if kind is GgmlType.F32:
        return e.load(address, F32, lanes)
    if kind is GgmlType.F16:
        half = e.load(address, ir.HalfType(), lanes)
        return e.b.fpext(half, ir.VectorType(F32, lanes) if lanes > 1 else F32)
    raw = e.load(address, I16, lanes)
    wide = ir.VectorType(I32, lanes) if lanes > 1 else I32
    shift = e.splat(I32, lanes, 16) if lanes > 1 else ir.Constant(I32, 16)
    return e.b.bitcast(e.b.shl(e.b.zext(raw, wide), shift), ir.VectorType(F32, lanes) if lanes > 1 else F32)
