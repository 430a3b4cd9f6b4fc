"""float16 in compiled code, as its bits: Numba has no such type on the CPU."""
# mypy: allow-untyped-defs, allow-untyped-decorators

from typing import Any

from numba import types
from numba.extending import intrinsic

from neuron.kernels.quant.emit import F16, F32, I16, I64, Emitter


@intrinsic
def half_bits(typingctx: Any, value: Any) -> Any:
    """Bits 0..65535 of a float32 rounded to float16 (to even; too large becomes infinity)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        b = Emitter(builder).b
        return b.zext(b.bitcast(b.fptrunc(args[0], F16), I16), I64)

    return types.int64(types.float32), codegen


@intrinsic
def half_value(typingctx: Any, bits: Any) -> Any:
    """The float32 of float16 bits."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        b = Emitter(builder).b
        return b.fpext(b.bitcast(b.trunc(args[0], I16), F16), F32)

    return types.float32(types.int64), codegen
