"""Blocks as unsigned bytes in order, 64 weights at a time. For kernels.quant.byte_rows; layouts are ggml's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from neuron.kernels.quant.emit import I1, I8, I16, I32, I64, Emitter

#: Weights that are multiplied at once.
CHUNK = 64


@dataclass(slots=True, frozen=True)
class Run:
    """`count` blocks in a row, `size` bytes each, at `base`: 256 weights, or one or two blocks that are left over."""

    base: ir.Value
    size: int
    count: int

    def at(self, e: Emitter, offset: int, block: int = 0) -> ir.Value:
        return e.at(self.base, block * self.size + offset)


Values = Callable[[Emitter, Run, int], ir.Value]
"""<64 x i8>: chunk number n of a run."""


def _shifted(e: Emitter, vector: ir.Value, right: Sequence[int], mask: int) -> ir.Value:
    """Each of len(right) equal parts shifted right by its own number of bits (left if negative), then masked."""
    words = vector.type.count // 2
    each = words // len(right)
    amounts = [right[word // each] for word in range(words)]
    vector = e.b.bitcast(vector, ir.VectorType(I16, words))
    shift = e.b.lshr if min(right) >= 0 else e.b.shl
    if any(amounts):
        vector = shift(vector, ir.Constant(vector.type, [ir.Constant(I16, abs(amount)) for amount in amounts]))
    return e.mask(e.b.bitcast(vector, ir.VectorType(I8, 2 * words)), mask)


def _masked(e: Emitter, vector: ir.Value, masks: Sequence[int]) -> ir.Value:
    """Each of len(masks) equal parts of <64 x i8> with its own mask."""
    each = [ir.Constant(I8, masks[lane * len(masks) // CHUNK]) for lane in range(CHUNK)]
    return e.b.and_(vector, ir.Constant(vector.type, each))


def _twice_over(e: Emitter, address: ir.Value) -> ir.Value:
    """32 bytes in both halves."""
    once = e.load(address, I8, 32)
    return e.join(once, once)


def _blocks(run: Run, chunk: int) -> range:
    """The blocks of 32 of one chunk: two, or the last one alone."""
    return range(2 * chunk, min(2 * chunk + 2, run.count))


def nibbles_of_blocks(at: int) -> Values:
    """Two blocks of 32: in each, the low nibbles of 16 bytes, then the high ones, sixteen times themselves."""

    def values(e: Emitter, run: Run, chunk: int) -> ir.Value:
        return _masked(e, _bytes_of_blocks(e, run, chunk, at), (0x0F, 0xF0) * 2)

    return values


def levels_of_blocks(at: int) -> Values:
    """The same, all 0..15."""

    def values(e: Emitter, run: Run, chunk: int) -> ir.Value:
        return _shifted(e, _bytes_of_blocks(e, run, chunk, at), (0, 4) * 2, 15)

    return values


def _bytes_of_blocks(e: Emitter, run: Run, chunk: int, at: int) -> ir.Value:
    """16 bytes of each of two blocks, twice."""
    parts = [e.load(run.at(e, at, block), I8, 16) for block in _blocks(run, chunk)]
    parts.append(e.splat(I8, 16, 0))
    lanes = [lane % 16 + 16 * (lane // 32) for lane in range(CHUNK)]
    return e.pick(e.join(parts[0], parts[1]), lanes)


def with_fifth_bits(
    nibbles: Callable[[Emitter, Run, int], ir.Value], at: int
) -> Callable[[Emitter, Run, int], ir.Value]:
    def values(e: Emitter, run: Run, chunk: int) -> ir.Value:
        bits = e.i64(0)
        for block in _blocks(run, chunk):
            word = e.b.zext(e.load(run.at(e, at, block), I32), I64)
            bits = e.b.or_(bits, e.b.shl(word, e.i64(32 * (block % 2))))
        return _raised(e, nibbles(e, run, chunk), e.b.bitcast(bits, ir.VectorType(I1, CHUNK)), (16,))

    return values


def _raised(e: Emitter, values: ir.Value, where: ir.Value, by: Sequence[int]) -> ir.Value:
    """`values` plus `by` (for each of len(by) equal parts), a bit that is not set there, where asked."""
    bits = ir.Constant(values.type, [ir.Constant(I8, by[lane * len(by) // CHUNK]) for lane in range(CHUNK)])
    return e.b.select(where, e.b.or_(values, bits), values)


def _bits_of_groups(e: Emitter, address: ir.Value, chunk: int) -> ir.Value:
    """<64 x i1>: bit 2 * chunk of 32 bytes, then bit 2 * chunk + 1."""
    wanted = [ir.Constant(I8, 1 << (2 * chunk + lane // 32)) for lane in range(CHUNK)]
    found = e.b.and_(_twice_over(e, address), ir.Constant(ir.VectorType(I8, CHUNK), wanted))
    return e.b.icmp_unsigned("!=", found, e.splat(I8, CHUNK, 0))


def q8_0(e: Emitter, run: Run, chunk: int) -> ir.Value:
    parts = [e.load(run.at(e, 2, block), I8, 32) for block in _blocks(run, chunk)]
    parts.append(e.splat(I8, 32, 0))
    values = e.join(parts[0], parts[1])
    return e.b.xor(values, e.splat(I8, CHUNK, 0x80))


def q4_k(e: Emitter, run: Run, chunk: int) -> ir.Value:
    return _masked(e, _twice_over(e, run.at(e, 16 + 32 * chunk)), (0x0F, 0xF0))


def q5_k(e: Emitter, run: Run, chunk: int) -> ir.Value:
    low = _shifted(e, _twice_over(e, run.at(e, 48 + 32 * chunk)), (0, 4), 15)
    return _raised(e, low, _bits_of_groups(e, run.at(e, 16), chunk), (16,))


def q2_k(e: Emitter, run: Run, chunk: int) -> ir.Value:
    half, side = divmod(chunk, 2)
    return _masked(e, _twice_over(e, run.at(e, 16 + 32 * half)), (0x30, 0xC0) if side else (0x03, 0x0C))


def q3_k(e: Emitter, run: Run, chunk: int) -> ir.Value:
    half, side = divmod(chunk, 2)
    packed = _twice_over(e, run.at(e, 32 + 32 * half))
    if side:
        packed = _shifted(e, packed, (2,), 0xFF)
    low = _masked(e, packed, (0x0C, 0x30) if side else (0x03, 0x0C))
    return _raised(e, low, _bits_of_groups(e, run.at(e, 0), chunk), (16, 64) if side else (4, 16))


def q6_k(e: Emitter, run: Run, chunk: int) -> ir.Value:
    half, side = divmod(chunk, 2)
    low = _shifted(e, e.load(run.at(e, 64 * half), I8, CHUNK), (4 * side,), 15)
    high = _twice_over(e, run.at(e, 128 + 32 * half))
    return e.b.or_(low, _shifted(e, high, (-4, -2) if side == 0 else (0, 2), 0x30))
