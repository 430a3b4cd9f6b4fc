"""Rows of every block type for CPUs that multiply bytes (VNNI): 64 weights at a time, blocks of 32 eight at a time.

Weights become unsigned bytes in order; activations are int16 in two signed bytes (activations.py, BYTES). A group's
scale reaches its four-byte lanes by a permutation. What a type's zero level or least value adds is a product of scales
and the activations' sums.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir
from numba.core import cgutils

from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.quant import byte_scales, byte_values
from neuron.kernels.quant.byte_values import CHUNK, Run, Values
from neuron.kernels.quant.emit import F32, I8, I32, I64, Emitter

#: Weights that share one load of scales.
RUN = 256
#: How far ahead of a row's reading its memory is asked for. The CPU's own look-ahead ends with each page of 4 KiB; it
#: is enough for rows of floats, which are read faster than those of blocks are computed.
AHEAD = 4096

Quarters = tuple[float, float, float, float]


@dataclass(slots=True, frozen=True)
class ByteRows:
    """`values`: <64 x i8> number `chunk` of a run.

    `pairs`: (scale, factor of the sum) of each group of 32 side by side, floats; or `sixteens`: (scales, factors or
    None) of each 16 weights. A sum counts `zero` times its factor; without factors, its scale. `parts`: what the values
    of each quarter of even and of odd chunks are multiplied with to be levels: bits that stay where they are in a byte
    need no shift.
    """

    values: Values
    zero: float
    pairs: Callable[[Emitter, Run], ir.Value] | None = None
    sixteens: Callable[[Emitter, Run], tuple[ir.Value, ir.Value | None]] | None = None
    parts: tuple[Quarters, Quarters] = ((1, 1, 1, 1), (1, 1, 1, 1))


def byte_dot(e: Emitter, kind: GgmlType, row: ir.Value, q: ir.Value, d: ir.Value, cols: ir.Value) -> ir.Value:
    """float32 dot product of one row; `cols` is a multiple of the block size."""
    sums = _Sums(e, kind, (q, d, sums_address(e, d, cols)))
    runs = e.b.udiv(cols, e.i64(RUN))
    bytes_ = e.i64(kind.nbytes(RUN))
    with cgutils.for_range(e.b, runs, intp=I64) as loop:
        sums.add(e.b.add(row, e.b.mul(loop.index, bytes_)), e.b.shl(loop.index, e.i64(8)), RUN // kind.block_size)
    if kind.block_size < RUN:
        row, done = e.b.add(row, e.b.mul(runs, bytes_)), e.b.shl(runs, e.i64(8))
        left = e.b.sub(cols, done)
        twos = e.b.udiv(left, e.i64(CHUNK))
        with cgutils.for_range(e.b, twos, intp=I64) as loop:
            base = e.b.add(row, e.b.mul(loop.index, e.i64(kind.nbytes(CHUNK))))
            sums.add(base, e.b.add(done, e.b.shl(loop.index, e.i64(6))), 2)
        with e.b.if_then(e.b.icmp_unsigned("!=", e.b.and_(left, e.i64(32)), e.i64(0))):
            base = e.b.add(row, e.b.mul(twos, e.i64(kind.nbytes(CHUNK))))
            sums.add(base, e.b.add(done, e.b.shl(twos, e.i64(6))), 1)
    return sums.total()


def sums_address(e: Emitter, scales: ir.Value, cols: ir.Value) -> ir.Value:
    """Where the sums of 16 lie: behind the pairs of `cols` values, filled up to whole chunks."""
    chunks = e.b.lshr(e.b.add(cols, e.i64(CHUNK - 1)), e.i64(6))
    return e.b.add(scales, e.b.shl(chunks, e.i64(4)))


class _Sums:
    """The accumulators of one row, 16 lanes each."""

    def __init__(self, e: Emitter, kind: GgmlType, activations: tuple[ir.Value, ir.Value, ir.Value]) -> None:
        self._e, self._rows, self._size, self._width = e, BYTE_ROWS[kind], kind.type_size, kind.block_size
        self._q, self._pairs, self._sums = activations
        self._vectors = [cgutils.alloca_once_value(e.b, e.splat(F32, 16, 0.0)) for _ in range(2)]
        self._offset = cgutils.alloca_once_value(e.b, e.splat(F32, 16, 0.0))

    def add(self, base: ir.Value, first: ir.Value, count: int) -> None:
        """`count` blocks at `base`, whose weights begin at column `first`."""
        e, run = self._e, Run(base, self._size, count)
        if count * self._width == RUN:
            e.prefetch(e.at(base, AHEAD), count * self._size)
        scales, picked = self._by_pairs(run, first) if self._rows.pairs else self._by_sixteens(run, first)
        activations = e.b.add(self._q, e.b.shl(first, e.i64(1)))
        for chunk in range(-(-count * self._width // CHUNK)):
            values = self._rows.values(e, run, chunk)
            high, low = (e.load(e.at(activations, 2 * CHUNK * chunk + CHUNK * part), I8, CHUNK) for part in range(2))
            whole = e.shift_left(e.byte_products(e.splat(I32, 16, 0), values, high), 8)
            whole = e.b.sitofp(e.byte_products(whole, values, low), ir.VectorType(F32, 16))
            last = scales.type.count - 1
            spread = e.pick(scales, [min(4 * chunk + picked[lane // 4], last) for lane in range(16)])
            vector = self._vectors[chunk % 2]
            e.store_to(vector, e.fma(whole, spread, e.b.load(vector)))

    def _by_pairs(self, run: Run, first: ir.Value) -> tuple[ir.Value, tuple[int, ...]]:
        """The run's scales times the activations', and which of four each quarter of a chunk's lanes takes."""
        e = self._e
        assert self._rows.pairs is not None
        pairs = self._rows.pairs(e, run)
        activations = e.load(e.b.add(self._pairs, e.b.lshr(first, e.i64(2))), F32, pairs.type.count)
        products = e.b.fmul(pairs, activations)
        e.store_to(self._offset, e.b.fadd(e.b.load(self._offset), self._sixteen_lanes(products)))
        return products, (0, 0, 2, 2)

    def _by_sixteens(self, run: Run, first: ir.Value) -> tuple[ir.Value, tuple[int, ...]]:
        e = self._e
        assert self._rows.sixteens is not None
        scales, factors = self._rows.sixteens(e, run)
        place = e.b.lshr(first, e.i64(2))
        sums = e.load(e.b.add(self._sums, place), F32, 16)
        e.store_to(self._offset, e.fma(scales if factors is None else factors, sums, e.b.load(self._offset)))
        pairs = e.load(e.b.add(self._pairs, place), F32, 16)
        return e.b.fmul(scales, e.pick(pairs, [lane & ~1 for lane in range(16)])), (0, 1, 2, 3)

    def _sixteen_lanes(self, vector: ir.Value) -> ir.Value:
        """The new ones are zero."""
        count = vector.type.count
        if count == 16:
            return vector
        mask = [ir.Constant(I32, min(lane, count)) for lane in range(16)]
        zero = self._e.splat(F32, count, 0.0)
        return self._e.b.shuffle_vector(vector, zero, ir.Constant(ir.VectorType(I32, 16), mask))

    def total(self) -> ir.Value:
        e, zero = self._e, self._rows.zero
        total = e.splat(F32, 16, 0.0)
        for vector, quarters in zip(self._vectors, self._rows.parts, strict=True):
            total = e.fma(e.b.load(vector), _lanes([quarters[lane // 4] for lane in range(16)]), total)
        # Of pairs, only the second ones are products with sums.
        factors = [zero if lane % 2 or self._rows.pairs is None else 0.0 for lane in range(16)]
        return e.sum_floats(e.fma(e.b.load(self._offset), _lanes(factors), total))


def _lanes(values: Sequence[float]) -> ir.Constant:
    return ir.Constant(ir.VectorType(F32, len(values)), [ir.Constant(F32, value) for value in values])


#: Low nibbles as they are, high ones sixteen times themselves.
_BLOCKS_OF_NIBBLES: Quarters = (1, 1 / 16, 1, 1 / 16)
_GROUPS_OF_NIBBLES: Quarters = (1, 1, 1 / 16, 1 / 16)
_TWO_BITS: tuple[Quarters, Quarters] = ((1, 1, 1 / 4, 1 / 4), (1 / 16, 1 / 16, 1 / 64, 1 / 64))
_THREE_BITS: tuple[Quarters, Quarters] = ((1, 1, 1 / 4, 1 / 4), (1 / 4, 1 / 4, 1 / 16, 1 / 16))

BYTE_ROWS: dict[GgmlType, ByteRows] = {
    GgmlType.Q4_0: ByteRows(
        byte_values.nibbles_of_blocks(2), -8.0, pairs=byte_scales.one_half, parts=(_BLOCKS_OF_NIBBLES,) * 2
    ),
    GgmlType.Q4_1: ByteRows(
        byte_values.nibbles_of_blocks(4), 1.0, pairs=byte_scales.two_halves, parts=(_BLOCKS_OF_NIBBLES,) * 2
    ),
    GgmlType.Q5_0: ByteRows(
        byte_values.with_fifth_bits(byte_values.levels_of_blocks(6), 2), -16.0, pairs=byte_scales.one_half
    ),
    GgmlType.Q5_1: ByteRows(
        byte_values.with_fifth_bits(byte_values.levels_of_blocks(8), 4), 1.0, pairs=byte_scales.two_halves
    ),
    GgmlType.Q8_0: ByteRows(byte_values.q8_0, -128.0, pairs=byte_scales.one_half),
    GgmlType.Q2_K: ByteRows(byte_values.q2_k, -1.0, sixteens=byte_scales.q2_k_scales, parts=_TWO_BITS),
    GgmlType.Q3_K: ByteRows(byte_values.q3_k, -4.0, sixteens=byte_scales.q3_k_scales, parts=_THREE_BITS),
    GgmlType.Q4_K: ByteRows(byte_values.q4_k, -1.0, pairs=byte_scales.six_bits, parts=(_GROUPS_OF_NIBBLES,) * 2),
    GgmlType.Q5_K: ByteRows(byte_values.q5_k, -1.0, pairs=byte_scales.six_bits),
    GgmlType.Q6_K: ByteRows(byte_values.q6_k, -32.0, sixteens=byte_scales.q6_k_scales),
}
