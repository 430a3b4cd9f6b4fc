"""Scales of a run of blocks as floats in vectors, for kernels.quant.byte_rows; layouts follow ggml's structs."""

from llvmlite import ir

from neuron.kernels.quant.byte_values import Run
from neuron.kernels.quant.emit import F16, F32, I8, I16, I32, I64, Emitter

_WINDOW = 64


# -- scales of the blocks of 32, which begin with them


def _headers(e: Emitter, run: Run, kind: ir.IntType) -> ir.Value:
    """The first integer of each block, <count x kind>; eight are picked out of as few loads of 64 bytes as will do."""
    width = kind.width // 8
    if run.count < 8:
        found = ir.Constant(ir.VectorType(kind, run.count), ir.Undefined)
        for block in range(run.count):
            found = e.b.insert_element(found, e.load(run.at(e, 0, block), kind), ir.Constant(I32, block))
        return found
    found = e.splat(kind, 8, 0)
    done = 0
    while done < run.count:
        # The last window ends with the last block: nothing behind it is read.
        start = min(done * run.size, run.count * run.size - _WINDOW)
        inside = [block for block in range(done, run.count) if block * run.size + width <= start + _WINDOW]
        start -= (start - inside[0] * run.size) % width
        window = e.load(run.at(e, start), kind, _WINDOW // width)
        held = [(block * run.size - start) // width if block in inside else 0 for block in range(run.count)]
        take = [lane + 8 if lane in inside else lane for lane in range(8)]
        mask = ir.Constant(ir.VectorType(I32, 8), [ir.Constant(I32, lane) for lane in take])
        found = e.b.shuffle_vector(found, e.pick(window, held), mask)
        done = inside[-1] + 1
    return found


def _floats(e: Emitter, halves: ir.Value) -> ir.Value:
    return e.b.fpext(halves, ir.VectorType(F32, halves.type.count))


def one_half(e: Emitter, run: Run) -> ir.Value:
    """A float16 scale, which also is the factor of the sum."""
    halves = e.pick(_headers(e, run, I16), [lane // 2 for lane in range(2 * run.count)])
    return _floats(e, e.b.bitcast(halves, ir.VectorType(F16, 2 * run.count)))


def two_halves(e: Emitter, run: Run) -> ir.Value:
    """Scale and least value, float16."""
    return _floats(e, e.b.bitcast(_headers(e, run, I32), ir.VectorType(F16, 2 * run.count)))


# -- scales of the blocks of 256


def _scaled(e: Emitter, small: ir.Value, factors: ir.Value, *, signed: bool = False) -> ir.Value:
    """<16 x i8> times floats."""
    wide = e.widen_signed(small, I32) if signed else e.widen(small, I32)
    return e.b.fmul(e.b.sitofp(wide, ir.VectorType(F32, 16)), factors)


def _half_at(e: Emitter, address: ir.Value) -> ir.Value:
    """A float16 in 16 lanes."""
    return e.broadcast(e.load_half(address), 16)


def _words(*values: int) -> ir.Constant:
    """<16 x i8> whose four runs of two 16-bit words are `values`."""
    words = [values[word // 4] for word in range(8)]
    parts = [ir.Constant(I8, byte) for word in words for byte in (word & 255, word >> 8)]
    return ir.Constant(ir.VectorType(I8, 16), parts)


def six_bits(e: Emitter, run: Run) -> ir.Value:
    """Scales and least values of 6 bits side by side (Q4_K, Q5_K; see blocks.six_bit_scales for where they are)."""
    packed = e.load(run.at(e, 4), I8, 16)
    early = [0, 4, 1, 5, 2, 6, 3, 7]
    low = e.pick(packed, [*early, 8, 8, 9, 9, 10, 10, 11, 11])
    top = e.pick(packed, early * 2)

    def shifted(vector: ir.Value, bits: int) -> ir.Value:
        words = e.b.bitcast(vector, ir.VectorType(I16, 8))
        return e.b.bitcast(e.shift_right(words, bits), ir.VectorType(I8, 16))

    small = e.b.and_(low, _words(0x3F3F, 0x000F))
    small = e.b.or_(small, e.b.and_(shifted(low, 4), _words(0, 0x0F00)))
    small = e.b.or_(small, e.b.and_(shifted(top, 2), _words(0, 0x3030)))
    both = e.b.bitcast(e.broadcast(e.load(run.at(e, 0), I32), 8), ir.VectorType(F16, 16))
    return _scaled(e, small, _floats(e, both))


def q2_k_scales(e: Emitter, run: Run) -> tuple[ir.Value, ir.Value]:
    packed = e.load(run.at(e, 0), I8, 16)
    scales = _scaled(e, e.mask(packed, 15), _half_at(e, run.at(e, 80)))
    return scales, _scaled(e, e.shift_right(packed, 4), _half_at(e, run.at(e, 82)))


def q3_k_scales(e: Emitter, run: Run) -> tuple[ir.Value, None]:
    """16 scales of 6 bits less 32: low nibbles in 8 bytes, the 2 high bits of each in 4 more."""
    low, high = e.load(run.at(e, 96), I64), e.b.zext(e.load(run.at(e, 104), I32), I64)
    nibbles, twos = e.i64(0x0F0F0F0F0F0F0F0F), e.i64(0x0303030303030303)
    halves = []
    for half in range(2):
        both = e.b.or_(e.b.lshr(high, e.i64(4 * half)), e.b.shl(e.b.lshr(high, e.i64(4 * half + 2)), e.i64(32)))
        top = e.b.shl(e.b.and_(both, twos), e.i64(4))
        bottom = e.b.and_(e.b.lshr(low, e.i64(4 * half)), nibbles)
        halves.append(e.b.bitcast(e.b.or_(bottom, top), ir.VectorType(I8, 8)))
    small = e.plus(e.join(*halves), -32)
    return _scaled(e, small, _half_at(e, run.at(e, 108)), signed=True), None


def q6_k_scales(e: Emitter, run: Run) -> tuple[ir.Value, None]:
    small = e.load(run.at(e, 192), I8, 16)
    return _scaled(e, small, _half_at(e, run.at(e, 208)), signed=True), None
