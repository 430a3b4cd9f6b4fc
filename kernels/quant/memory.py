"""Raw memory and synchronisation for compiled code, as Numba intrinsics over integer addresses."""
# mypy: allow-untyped-defs, allow-untyped-decorators

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from neuron.kernels.quant.emit import F32, I32, I64, Emitter


@intrinsic
def load_f32(typingctx: Any, address: Any) -> Any:
    """float32 at `address`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return Emitter(builder).load(args[0], F32, align=4)

    return types.float32(types.int64), codegen


@intrinsic
def store_f32(typingctx: Any, address: Any, value: Any) -> Any:
    """Write float32 `value` at `address`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        Emitter(builder).store(args[1], args[0], align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), codegen


@intrinsic
def load_i64(typingctx: Any, address: Any) -> Any:
    """int64 at `address`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return Emitter(builder).load(args[0], I64, align=8)

    return types.int64(types.int64), codegen


@intrinsic
def atomic_add(typingctx: Any, address: Any, value: Any) -> Any:
    """Add to the int64 at `address`; returns what was there. Acquires and releases."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", builder.inttoptr(args[0], I64.as_pointer()), args[1], "acq_rel")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def atomic_load(typingctx: Any, address: Any) -> Any:
    """int64 at `address`, acquiring."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], I64.as_pointer()), "acquire", 8)

    return types.int64(types.int64), codegen


@intrinsic
def atomic_store(typingctx: Any, address: Any, value: Any) -> Any:
    """Write the int64 at `address`, releasing."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], builder.inttoptr(args[0], I64.as_pointer()), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def yield_core(typingctx: Any) -> Any:
    """Let another thread have this core (POSIX sched_yield)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        module = builder.module
        function = module.globals.get("sched_yield") or ir.Function(
            module, ir.FunctionType(I32, []), name="sched_yield"
        )
        builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def keep_apart(typingctx: Any) -> Any:
    """Forbid LLVM to inline the function that calls this: for large helpers with many call sites."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), codegen
