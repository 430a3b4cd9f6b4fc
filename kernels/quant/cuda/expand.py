"""CUDA kernel that turns rows of blocks into numbers: a matrix before a large product, or embeddings of tokens."""
# mypy: allow-untyped-defs, allow-untyped-decorators

from collections.abc import Callable
from typing import Any

from neuron.kernels.cuda import F16, F32, I16, I32, I64, cuda, narrow, plain, types
from neuron.kernels.quant.cuda.unpack import UNIT, Layout

THREADS = 64


def make(layout: Layout, *, bfloat16: bool, chosen: bool) -> Callable[..., None]:
    """A kernel on grid (rows of out, ceil(cols / UNIT / THREADS)). `chosen`: rows are named, else all in order."""
    unpack, run, stride, apart, region = layout.unpack, layout.run, layout.stride, layout.apart, layout.region
    store = narrow if bfloat16 else plain

    def expand(words, halves, rows, out):
        """out [n, cols]; rows int64 [n], of which only the first counts as data when all rows are wanted."""
        weights = cuda.local.array(UNIT, F32)
        unit = cuda.blockIdx.y * THREADS + cuda.threadIdx.x
        target = cuda.blockIdx.x
        if unit >= out.shape[1] // UNIT:
            return
        source = target
        if chosen:
            source = min(max(rows[target], 0), words.shape[0] - 1)
        unpack(words, halves, source, unit, weights)
        base = unit // apart * region + unit % apart * run
        for i in range(UNIT):
            out[target, base + i // run * stride + i % run] = store(weights[i])

    return expand


def signature(layout: Layout, *, bfloat16: bool) -> Any:
    words = I32 if layout.wide else I16
    return types.void(words[:, ::1], F16[:, ::1], I64[::1], (I16 if bfloat16 else F32)[:, ::1])
