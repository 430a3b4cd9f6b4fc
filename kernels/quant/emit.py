"""Emitter: the small vocabulary of LLVM vector operations that the block kernels are written in.

Operations are generic LLVM vectors, which LLVM splits for narrower CPUs; only the pairwise multiply-add has forms of
its own for AVX-512 VNNI and AVX2, chosen when the code is compiled for this host.
"""

from collections.abc import Sequence
from functools import cache

import llvmlite.binding as llvm
from llvmlite import ir

I1, I8, I16, I32, I64 = ir.IntType(1), ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
F16, F32 = ir.HalfType(), ir.FloatType()


@cache
def host_features() -> frozenset[str]:
    """Names of the vector extensions of this CPU, as LLVM spells them."""
    return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)


def has_byte_products() -> bool:
    """Whether this CPU multiplies bytes and adds them in fours (AVX-512 VNNI, or AVX-VNNI with half the width)."""
    return _has_wide_byte_products() or "avxvnni" in host_features()


def _has_wide_byte_products() -> bool:
    return {"avx512vnni", "avx512bw", "avx512vl"} <= host_features()


class Emitter:
    """Wraps an IRBuilder. Addresses are i64 values."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.b = builder

    # -- constants and memory

    def splat(self, element: ir.Type, lanes: int, value: float) -> ir.Constant:
        return ir.Constant(ir.VectorType(element, lanes), [ir.Constant(element, value)] * lanes)

    def i64(self, value: int) -> ir.Constant:
        return ir.Constant(I64, value)

    def at(self, base: ir.Value, offset: int) -> ir.Value:
        return self.b.add(base, self.i64(offset)) if offset else base

    def load(self, address: ir.Value, kind: ir.Type, lanes: int = 1, align: int = 1) -> ir.Value:
        whole = ir.VectorType(kind, lanes) if lanes > 1 else kind
        return self.b.load(self.b.inttoptr(address, whole.as_pointer()), align=align)

    def store(self, value: ir.Value, address: ir.Value, align: int = 1) -> None:
        self.b.store(value, self.b.inttoptr(address, value.type.as_pointer()), align=align)

    def store_to(self, place: ir.Value, value: ir.Value) -> None:
        """Write to a place made by alloca."""
        self.b.store(value, place)

    def load_half(self, address: ir.Value) -> ir.Value:
        return self.b.fpext(self.load(address, F16), F32)

    def prefetch(self, address: ir.Value, nbytes: int, *, level: int = 1) -> None:
        """Ask for the lines of `nbytes` at `address`, into the cache of that level. The address need not be valid."""
        pointer = I8.as_pointer()
        call = self._intrinsic("llvm.prefetch.p0", ir.VoidType(), [pointer, I32, I32, I32])
        # For reading, how close to keep it (3: in all caches), data.
        flags = [ir.Constant(I32, value) for value in (0, 4 - level, 1)]
        for line in range(0, nbytes, 64):
            self.b.call(call, [self.b.inttoptr(self.at(address, line), pointer), *flags])

    # -- vectors

    def broadcast(self, scalar: ir.Value, lanes: int) -> ir.Value:
        whole = ir.VectorType(scalar.type, lanes)
        one = self.b.insert_element(ir.Constant(whole, ir.Undefined), scalar, ir.Constant(I32, 0))
        return self.b.shuffle_vector(one, ir.Constant(whole, ir.Undefined), self.splat(I32, lanes, 0))

    def halves(self, low: ir.Value, high: ir.Value, lanes: int) -> ir.Value:
        """`low` in the first half of the lanes, `high` in the second."""
        return self.join(self.broadcast(low, lanes // 2), self.broadcast(high, lanes // 2))

    def join(self, low: ir.Value, high: ir.Value) -> ir.Value:
        count = 2 * low.type.count
        mask = ir.Constant(ir.VectorType(I32, count), [ir.Constant(I32, i) for i in range(count)])
        return self.b.shuffle_vector(low, high, mask)

    def pick(self, vector: ir.Value, lanes: Sequence[int]) -> ir.Value:
        mask = ir.Constant(ir.VectorType(I32, len(lanes)), [ir.Constant(I32, i) for i in lanes])
        return self.b.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), mask)

    def lane(self, vector: ir.Value, index: int) -> ir.Value:
        return self.b.extract_element(vector, ir.Constant(I32, index))

    def widen(self, vector: ir.Value, element: ir.Type) -> ir.Value:
        return self.b.zext(vector, ir.VectorType(element, vector.type.count))

    def widen_signed(self, vector: ir.Value, element: ir.Type) -> ir.Value:
        return self.b.sext(vector, ir.VectorType(element, vector.type.count))

    def shift_right(self, vector: ir.Value, bits: int) -> ir.Value:
        return self.b.lshr(vector, self.splat(vector.type.element, vector.type.count, bits)) if bits else vector

    def shift_left(self, vector: ir.Value, bits: int) -> ir.Value:
        return self.b.shl(vector, self.splat(vector.type.element, vector.type.count, bits)) if bits else vector

    def mask(self, vector: ir.Value, bits: int) -> ir.Value:
        return self.b.and_(vector, self.splat(vector.type.element, vector.type.count, bits))

    def plus(self, vector: ir.Value, value: int) -> ir.Value:
        return self.b.add(vector, self.splat(vector.type.element, vector.type.count, value))

    # -- arithmetic

    def fma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        return self.b.call(self._intrinsic(f"llvm.fma.{_suffix(a.type)}", a.type, [a.type] * 3), [a, b, c])

    def unary(self, name: str, a: ir.Value) -> ir.Value:
        return self.b.call(self._intrinsic(f"llvm.{name}.{_suffix(a.type)}", a.type, [a.type]), [a])

    def sum_floats(self, vector: ir.Value) -> ir.Value:
        """Pairwise sum of the lanes (a power of two)."""
        while vector.type.count > 1:
            half = vector.type.count // 2
            if half == 1:
                return self.b.fadd(self.lane(vector, 0), self.lane(vector, 1))
            low, high = self.pick(vector, range(half)), self.pick(vector, range(half, 2 * half))
            vector = self.b.fadd(low, high)
        return self.lane(vector, 0)

    def sum_integers(self, vector: ir.Value) -> ir.Value:
        kind = vector.type.element
        name = f"llvm.vector.reduce.add.{_suffix(vector.type)}"
        return self.b.call(self._intrinsic(name, kind, [vector.type]), [vector])

    def largest(self, vector: ir.Value) -> ir.Value:
        name = f"llvm.vector.reduce.fmax.{_suffix(vector.type)}"
        return self.b.call(self._intrinsic(name, F32, [vector.type]), [vector], fastmath=("nnan",))

    def pair_products(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """<32 x i16> . <32 x i16> -> <16 x i32>: products of neighbours, added in pairs."""
        features = host_features()
        sums = ir.VectorType(I32, 16)
        if "avx512vnni" in features and "avx512bw" in features:
            whole = ir.VectorType(I32, 16)
            call = self._intrinsic("llvm.x86.avx512.vpdpwssd.512", sums, [sums, whole, whole])
            return self._vnni(call, a, b)
        if "avx2" in features:
            quarter = ir.VectorType(I16, 16)
            call = self._intrinsic("llvm.x86.avx2.pmadd.wd", ir.VectorType(I32, 8), [quarter, quarter])
            low = self.b.call(call, [self.pick(a, range(16)), self.pick(b, range(16))])
            high = self.b.call(call, [self.pick(a, range(16, 32)), self.pick(b, range(16, 32))])
            return self.join(low, high)
        products = self.b.mul(self.widen_signed(a, I32), self.widen_signed(b, I32))
        return self.b.add(self.pick(products, range(0, 32, 2)), self.pick(products, range(1, 32, 2)))

    def byte_products(self, total: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
        """total <16 x i32> + products of <64 x i8> unsigned with <64 x i8> signed, in fours. See has_byte_products."""
        operands = [total, self.b.bitcast(unsigned, total.type), self.b.bitcast(signed, total.type)]
        if _has_wide_byte_products():
            call = self._intrinsic("llvm.x86.avx512.vpdpbusd.512", total.type, [total.type] * 3)
            return self.b.call(call, operands)
        half = ir.VectorType(I32, 8)
        call = self._intrinsic("llvm.x86.avx512.vpdpbusd.256", half, [half] * 3)
        parts = (range(8), range(8, 16))
        low, high = (self.b.call(call, [self.pick(operand, part) for operand in operands]) for part in parts)
        return self.join(low, high)

    def narrow_to_bf16(self, values: ir.Value) -> ir.Value:
        """16 or 32 floats -> bits of bfloat16, to nearest even, on CPUs with avx512bf16."""
        half, bits = ir.VectorType(F32, 16), ir.VectorType(I16, 16)
        if values.type.count == 32:
            parts = (self.pick(values, range(16)), self.pick(values, range(16, 32)))
            return self.join(*(self.narrow_to_bf16(part) for part in parts))
        return self.b.call(self._intrinsic("llvm.x86.avx512bf16.cvtneps2bf16.512", bits, [half]), [values])

    def times_power_of_two(self, values: ir.Value, powers: ir.Value) -> ir.Value:
        """values * 2**powers in 16 lanes, whole powers of any size, on CPUs with avx512f."""
        kind, mask = values.type, ir.IntType(16)
        call = self._intrinsic("llvm.x86.avx512.mask.scalef.ps.512", kind, [kind, kind, kind, mask, I32])
        # All lanes, rounded as usual.
        return self.b.call(call, [values, powers, values, ir.Constant(mask, -1), ir.Constant(I32, 4)])

    def _vnni(self, call: ir.Function, a: ir.Value, b: ir.Value) -> ir.Value:
        sums = ir.VectorType(I32, 16)
        operand = call.args[1].type
        zero = ir.Constant(sums, [ir.Constant(I32, 0)] * 16)
        return self.b.call(call, [zero, self.b.bitcast(a, operand), self.b.bitcast(b, operand)])

    def _intrinsic(self, name: str, result: ir.Type, arguments: Sequence[ir.Type]) -> ir.Function:
        module = self.b.module
        if name in module.globals:
            return module.globals[name]
        return ir.Function(module, ir.FunctionType(result, list(arguments)), name=name)


def _suffix(kind: ir.Type) -> str:
    names = {str(F32): "f32", str(I32): "i32", str(I16): "i16"}
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{names[str(kind.element)]}"
    return names[str(kind)]
