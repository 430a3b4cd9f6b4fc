"""The one door to numba.cuda: decorators, and what the simulator lacks, so that one kernel source runs in both.

The simulator (NUMBA_ENABLE_CUDASIM=1) has no warp intrinsics and no bfloat16, and takes shared arrays that are made on
one line for one array. Decorated functions are compiled at
their first launch, never at import. Imported only by the cuda.py of an operation, by their launchers and their tests.
"""
# mypy: allow-untyped-defs, allow-untyped-decorators

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba import config, cuda, float32, int32, types

__all__ = ["F16", "F32", "I16", "I32", "I64", "ONE", "SIMULATED", "WARP", "ZERO", "block_sum", "block_sums", "cuda"]
__all__ += ["byte_of", "device", "group_sum", "high_half", "kernel", "launch", "low_half", "narrow", "plain"]
__all__ += ["small", "sum_parts", "to_ptx", "types", "widen"]

SIMULATED = bool(config.ENABLE_CUDASIM)
ZERO, ONE = np.float32(0.0), np.float32(1.0)
WARP = 32
#: One value of a float32 or bfloat16 array; bfloat16 arrays are seen as their bits in int16.
F16, F32, I16, I32, I64 = types.float16, types.float32, types.int16, types.int32, types.int64


def device(function: Callable[..., Any]) -> Any:
    """A function that kernels call."""
    return cuda.jit(device=True)(function)


def kernel(function: Callable[..., Any], blocks: int | None = None) -> Any:
    """A kernel, `kernel(f)[grid, block, stream](...)`, compiled for the device and the block of its first launch.

    `blocks`: how many a multiprocessor must have room for at once. The compiler's own choice if None, which may put
    registers into memory where one block would do.
    """
    if SIMULATED:
        return cuda.jit(function)
    # Small grids are meant: a step of one token has no more to share out.
    config.CUDA_LOW_OCCUPANCY_WARNINGS = 0
    return _Bounded(function, blocks)


class _Bounded:
    """Compiled for each size of block by itself: without a bound a thread may get more registers than a block has.

    Through PTX, as `to_ptx` and the tests do it: with link-time optimisation everything would be compiled twice, and
    what the tests assembled would not be what runs.
    """

    def __init__(self, function: Callable[..., Any], blocks: int | None) -> None:
        self._function, self._blocks = function, blocks
        self._compiled: dict[int, Any] = {}

    def __getitem__(self, configuration: tuple[Any, ...]) -> Any:
        block = configuration[1]
        if block not in self._compiled:
            bounds = _bounds(block, self._blocks)
            self._compiled[block] = cuda.jit(self._function, launch_bounds=bounds, lto=False)
        return self._compiled[block][configuration]


def _bounds(threads: int, blocks: int | None) -> int | tuple[int, int]:
    return threads if blocks is None else (threads, blocks)


def to_ptx(
    function: Callable[..., Any],
    signature: Any,
    capabilities: Iterable[tuple[int, int]],
    threads: int,
    blocks: int | None = None,
) -> dict[str, str]:
    """PTX of a kernel by target ("sm_80", "sm_90a", ...), as a launch makes it there; needs no device.

    `threads`: the block it is launched with; `blocks` as in `kernel`. One pass over the source serves every capability.
    """
    from numba.cuda import compiler

    wanted = sorted(capabilities)
    with _assumed(wanted[0]):
        library, _ = compiler._compile_pyfunc_with_fixup(
            function, signature, device=False, abi="numba", cc=wanted[0], launch_bounds=_bounds(threads, blocks)
        )
        return {_target(one): "\n".join(library.get_asm_strs(cc=(*one, _features(one)))) for one in wanted}


def _target(capability: tuple[int, int]) -> str:
    return f"sm_{capability[0]}{capability[1]}{_features(capability)}"


def _features(capability: tuple[int, int]) -> str:
    """What numba.cuda asks of the compiler for the present device: features of this very one, from Hopper on."""
    return "a" if capability >= (9, 0) else ""


@contextmanager
def _assumed(capability: tuple[int, int]) -> Iterator[None]:
    """Functions that a kernel calls ask the present device for its capability; without one they are told this."""
    from numba.cuda import dispatcher

    known = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=capability)
    try:
        yield
    finally:
        dispatcher.get_current_device = known


def launch(compiled_kernel: Any, grid: tuple[int, ...], block: int, arguments: tuple[Any, ...]) -> None:
    """Launch on torch's current stream with tensors of its current device; bfloat16 tensors go in as their bits.

    Python's floats go in as float32. Launch every kernel once before a CUDA graph is captured: the first launch
    compiles. In the simulator the tensors are on the CPU.
    """
    import torch

    if SIMULATED:
        compiled_kernel[grid, block](*(_simulated(value) for value in arguments))
        return
    stream = _stream(torch.cuda.current_stream().cuda_stream)
    compiled_kernel[grid, block, stream](*(_on_device(value) for value in arguments))


@cache
def _stream(handle: int) -> Any:
    """One object for each stream: numba keeps launch configurations by it. Torch's streams live as long as it does."""
    return cuda.external_stream(handle)


def _simulated(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return (value.view(torch.int16) if value.dtype is torch.bfloat16 else value).numpy()
    return np.float32(value) if isinstance(value, float) else value


#: Numba's descriptions of tensors by address and form: making one costs more than a launch. They own no memory, so
#: that one which is out of date does no harm.
_described: dict[tuple[Any, ...], Any] = {}
_MOST_DESCRIBED = 1 << 14


def _on_device(value: Any) -> Any:
    import torch

    if not isinstance(value, torch.Tensor):
        return np.float32(value) if isinstance(value, float) else value
    key = (value.data_ptr(), value.shape, value.stride(), value.dtype)
    found = _described.get(key)
    if found is None:
        if len(_described) >= _MOST_DESCRIBED:
            _described.clear()
        bits = value.view(torch.int16) if value.dtype is torch.bfloat16 else value
        # With the tensor as its owner it would keep the memory.
        found = cuda.from_cuda_array_interface(bits.__cuda_array_interface__, None, False)
        _described[key] = found
    return found


def sum_parts(threads: int) -> int:
    """Partial sums that `block_sums` leaves of a block of so many threads."""
    return threads if SIMULATED else threads // WARP


@device
def plain(value):
    """float32 as stored."""
    return value


if SIMULATED:

    @device
    def widen(bits):
        """bfloat16 bits (int16) as float32."""
        return np.int32(np.int32(bits) << 16).view(np.float32)

    @device
    def narrow(value):
        """float32 as bfloat16 bits, to nearest even."""
        whole = np.float32(value).view(np.uint32)
        return np.uint16((int(whole) + 0x7FFF + ((int(whole) >> 16) & 1)) >> 16).view(np.int16)

    @device
    def block_sum(value, scratch, thread, threads):
        """Sum of `value` over the block, on every thread. `scratch`: shared float32 [threads]."""
        scratch[thread] = value
        cuda.syncthreads()
        total = ZERO
        for index in range(threads):
            total += scratch[index]
        cuda.syncthreads()
        return total

    @device
    def block_sums(values, count, scratch, thread):
        """Partial sums over the block of `count` values that each thread holds, in scratch [count, sum_parts]."""
        for index in range(count):
            scratch[index, thread] = values[index]
        cuda.syncthreads()

    @device
    def group_sum(value, width, scratch, thread):
        """Sum of `value` over aligned groups of `width` <= 32 threads, on each. Every thread of the block calls it."""
        scratch[thread] = value
        cuda.syncthreads()
        total = ZERO
        for index in range(width):
            total += scratch[thread // width * width + index]
        cuda.syncthreads()
        return total

    @device
    def low_half(word):
        """The first of two bfloat16 values in an int32, as float32."""
        return np.uint32((int(word) & 0xFFFF) << 16).view(np.float32)

    @device
    def high_half(word):
        """The second of two bfloat16 values in an int32, as float32."""
        return np.uint32(int(word) & 0xFFFF0000).view(np.float32)

    @device
    def small(value):
        """An integer 0..255 as float32."""
        return np.float32(value)

    @device
    def byte_of(word, index):
        """Byte `index` (0: the lowest) of a 32-bit word, as float32."""
        return np.float32((int(word) >> (8 * index)) & 255)

else:

    @device
    def widen(bits):
        """bfloat16 bits (int16) as float32."""
        return cuda.libdevice.int_as_float(int32(bits) << int32(16))

    @device
    def narrow(value):
        """float32 as bfloat16 bits, to nearest even."""
        whole = cuda.libdevice.float_as_int(value)
        rounded = whole + int32(0x7FFF) + ((whole >> int32(16)) & int32(1))
        return types.int16(rounded >> int32(16))

    @device
    def block_sum(value, scratch, thread, threads):
        """Sum of `value` over the block, on every thread. `scratch`: shared float32 [threads]. Whole warps only."""
        for step in (16, 8, 4, 2, 1):
            value += cuda.shfl_xor_sync(0xFFFFFFFF, value, step)
        if thread % WARP == 0:
            scratch[thread // WARP] = value
        cuda.syncthreads()
        total = float32(0.0)
        for index in range(threads // WARP):
            total += scratch[index]
        cuda.syncthreads()
        return total

    @device
    def block_sums(values, count, scratch, thread):
        """Partial sums over the block of `count` values that each thread holds, in scratch [count, sum_parts]."""
        for index in range(count):
            value = values[index]
            for step in (16, 8, 4, 2, 1):
                value += cuda.shfl_xor_sync(0xFFFFFFFF, value, step)
            if thread % WARP == 0:
                scratch[index, thread // WARP] = value
        cuda.syncthreads()

    @device
    def group_sum(value, width, scratch, thread):
        """Sum of `value` over aligned groups of `width` <= 32 threads, on each. Every thread of the block calls it."""
        step = width // 2
        while step > 0:
            value += cuda.shfl_xor_sync(0xFFFFFFFF, value, step)
            step //= 2
        return value

    @device
    def low_half(word):
        """The first of two bfloat16 values in an int32, as float32."""
        return cuda.libdevice.int_as_float(int32(int32(word) << int32(16)))

    @device
    def high_half(word):
        """The second of two bfloat16 values in an int32, as float32."""
        return cuda.libdevice.int_as_float(int32(int32(word) & int32(-65536)))

    @device
    def small(value):
        """An integer 0..255 as float32, put into the mantissa of 2^23: cheaper than a conversion."""
        return cuda.libdevice.int_as_float(int32(0x4B000000) | int32(value)) - float32(8388608.0)

    @device
    def byte_of(word, index):
        """Byte `index` (0: the lowest) of a 32-bit word, as float32: `small` in one instruction and a difference."""
        placed = cuda.libdevice.byte_perm(int32(word), int32(0x4B000000), int32(0x7440 | index))
        return cuda.libdevice.int_as_float(placed) - float32(8388608.0)
