"""Rows of Q4_K and Q5_K for CPUs that multiply bytes (AVX-512 VNNI): four groups of 32 per 64 bytes of nibbles.

The low nibbles of 64 bytes are groups 0 and 2, the high ones 1 and 3, eight 32-bit lanes each. int16 activations enter
as high and low bytes in that order (activations.py); all eight scales of a block are made in one vector.
"""

from llvmlite import ir
from numba.core import cgutils

from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.quant.blocks import six_bit_scales
from neuron.kernels.quant.emit import F32, I8, I32, I64, Emitter

#: Offset of the nibbles in a block; where the fifth bits are, if any.
SUPERBLOCKS: dict[GgmlType, tuple[int, int | None]] = {GgmlType.Q4_K: (16, None), GgmlType.Q5_K: (48, 16)}


def superblock_dot(e: Emitter, kind: GgmlType, row: ir.Value, q: ir.Value, d: ir.Value, cols: ir.Value) -> ir.Value:
    """float32 dot product of one row; `cols` is a multiple of 256."""
    vector = cgutils.alloca_once_value(e.b, e.splat(F32, 16, 0.0))
    offsets = cgutils.alloca_once_value(e.b, e.splat(F32, 8, 0.0))
    with cgutils.for_range(e.b, e.b.udiv(cols, e.i64(256)), intp=I64) as loop:
        block = e.b.add(row, e.b.mul(loop.index, e.i64(kind.type_size)))
        scales, leasts = six_bit_scales(e, block)
        pairs = e.load(e.b.add(d, e.b.shl(loop.index, e.i64(6))), F32, 16)
        scales = e.b.fmul(scales, e.pick(pairs, range(0, 16, 2)))
        e.store_to(offsets, e.fma(leasts, e.pick(pairs, range(1, 16, 2)), e.b.load(offsets)))
        activations = e.b.add(q, e.b.shl(loop.index, e.i64(9)))
        total = e.b.load(vector)
        for half in range(2):
            total = _add_half(e, kind, block, half, (e.at(activations, 256 * half), scales), total)
        e.store_to(vector, total)
    return e.b.fadd(e.sum_floats(e.b.load(vector)), e.sum_floats(e.b.load(offsets)))


def _add_half(
    e: Emitter, kind: GgmlType, block: ir.Value, half: int, given: tuple[ir.Value, ir.Value], total: ir.Value
) -> ir.Value:
    """`total` plus four groups. `given`: address of their activations, scales of the whole block."""
    nibbles, bits = SUPERBLOCKS[kind]
    packed = e.load(e.at(block, nibbles + 64 * half), I8, 64)
    activations, scales = given
    for side, values in enumerate((e.mask(packed, 15), e.shift_right(packed, 4))):
        groups = (4 * half + side, 4 * half + side + 2)
        if bits is not None:
            values = e.b.or_(values, _fifth_bits(e, e.at(block, bits), groups))
        high = e.load(e.at(activations, 64 * side), I8, 64)
        low = e.load(e.at(activations, 128 + 64 * side), I8, 64)
        whole = e.shift_left(e.byte_products(e.splat(I32, 16, 0), values, high), 8)
        whole = e.byte_products(whole, low, values)
        lanes = e.pick(scales, [groups[lane // 8] for lane in range(16)])
        total = e.fma(e.b.sitofp(whole, ir.VectorType(F32, 16)), lanes, total)
    return total


def _fifth_bits(e: Emitter, address: ir.Value, groups: tuple[int, int]) -> ir.Value:
    """16 for each weight of two groups whose bit in the 32 bytes at `address` is set."""
    once = e.load(address, I8, 32)
    wanted = [ir.Constant(I8, 1 << groups[lane // 32]) for lane in range(64)]
    found = e.b.and_(e.join(once, once), ir.Constant(ir.VectorType(I8, 64), wanted))
    return e.b.select(e.b.icmp_unsigned("!=", found, e.splat(I8, 64, 0)), e.splat(I8, 64, 16), e.splat(I8, 64, 0))
