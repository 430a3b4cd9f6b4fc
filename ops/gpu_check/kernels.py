"""Stage `kernels`: our kernels at the 27B's shapes as shares of the memory's bandwidth, and the launch shapes tried."""

from collections.abc import Iterator
from functools import partial
from itertools import cycle
from typing import Any

import torch

from neuron.kernels.cuda import kernel, launch
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.fused.launch import Attention
from neuron.kernels.quant.cuda import matvec, products
from neuron.kernels.quant.cuda.unpack import layout
from ops.gpu_check.context import Context, share
from ops.gpu_check.report import StageResult

#: Rows of the matrix and threads of a block.
_LAUNCHES = ((1, 64), (1, 128), (2, 64), (2, 128), (4, 64), (4, 128), (4, 256))
_KINDS = (GgmlType.Q4_K, GgmlType.Q6_K, GgmlType.Q8_0, GgmlType.Q4_0)
_LEAST_SECONDS = 12.0
#: More than any card's second-level cache.
_UNCACHED = 1 << 29


def run(context: Context, result: StageResult) -> None:
    with torch.inference_mode():
        _dense(context, result)
        _attention(context, result)
        for work in (_launches, _product):
            for kind in _KINDS if not context.small else _KINDS[-1:]:
                if context.left < _LEAST_SECONDS:
                    result.missing("no time left for every type of block")
                    return
                work(context, result, kind)


def _shape(context: Context) -> tuple[int, int]:
    return (8, 256) if context.small else (17408, 5120)


def _copies(context: Context, kind: GgmlType) -> list[torch.Tensor]:
    """The same matrix so often that no cache holds all: each run takes the next. What the bits mean costs no time."""
    rows, cols = _shape(context)
    size = rows * kind.nbytes(cols)
    count = 1 if context.small else -(-_UNCACHED // size)
    return [torch.full((rows, kind.nbytes(cols)), 17, dtype=torch.uint8, device=context.device) for _ in range(count)]


def _product(context: Context, result: StageResult, kind: GgmlType) -> None:
    rows, cols = _shape(context)
    copies, name = _copies(context, kind), kind.name.lower()
    for n in (1, 8) if not context.small else (1,):
        x = torch.ones(n, cols, dtype=torch.bfloat16, device=context.device)
        out, blocks = torch.empty(n, rows, device=context.device), cycle(copies)
        work = partial(_multiply_next, kind, blocks, x, out)
        taken = context.recorded_seconds(work)
        result.figures[f"product_{name}_{n}_s"] = taken
        result.figures[f"product_{name}_{n}_of_bandwidth"] = share(copies[0].nbytes / taken, context.ceilings.bandwidth)
    numbers = torch.empty(rows, cols, dtype=torch.bfloat16, device=context.device)
    taken = context.recorded_seconds(lambda: products.dequantise(kind, copies[0], numbers))
    moved = copies[0].nbytes + numbers.nbytes
    result.figures[f"numbers_{name}_of_bandwidth"] = share(moved / taken, context.ceilings.bandwidth)


def _multiply_next(kind: GgmlType, blocks: Iterator[torch.Tensor], x: torch.Tensor, out: torch.Tensor) -> None:
    products.multiply(kind, next(blocks), x, out)


def _launches(context: Context, result: StageResult, kind: GgmlType) -> None:
    """The best launch for one row: what products._block should say."""
    rows, cols = _shape(context)
    words = torch.int32 if layout(kind).wide else torch.int16
    copies = _copies(context, kind)
    x = torch.ones(1, cols, dtype=torch.bfloat16, device=context.device).view(torch.int32)
    out = torch.empty(1, rows, device=context.device)
    arguments = [(blocks.view(words), blocks.view(torch.float16), x, out) for blocks in copies]
    found = {}
    for tall, threads in _LAUNCHES if not context.small else _LAUNCHES[:1]:
        compiled = kernel(matvec.make(layout(kind), tall, 1, threads, bfloat16_in=True, bfloat16_out=False))
        work = partial(_launch_next, compiled, (-(-rows // tall),), threads, cycle(arguments))
        found[tall, threads] = context.recorded_seconds(work)
    best = min(found, key=lambda shape: found[shape])
    result.figures[f"launch_{kind.name.lower()}_best"] = f"{best[0]} rows, {best[1]} threads"
    result.figures[f"launch_{kind.name.lower()}_best_of_bandwidth"] = share(
        copies[0].nbytes / found[best], context.ceilings.bandwidth
    )


def _launch_next(compiled: Any, grid: tuple[int, ...], threads: int, arguments: Iterator[tuple[Any, ...]]) -> None:
    launch(compiled, grid, threads, next(arguments))


def _dense(context: Context, result: StageResult) -> None:
    rows, cols = _shape(context)
    weight = torch.ones(rows, cols, dtype=torch.bfloat16, device=context.device)
    x = torch.ones(1, cols, dtype=torch.bfloat16, device=context.device)
    taken = context.recorded_seconds(lambda: torch.nn.functional.linear(x, weight))
    result.figures["product_bf16_library_of_bandwidth"] = share(weight.nbytes / taken, context.ceilings.bandwidth)


def _attention(context: Context, result: StageResult) -> None:
    heads, kv_heads, dim, positions = (4, 2, 16, 70) if context.small else (24, 4, 256, 65536)
    attention = Attention(heads, kv_heads, dim, 1, positions, context.device)
    rows = torch.zeros(2, kv_heads, positions, dim, dtype=torch.bfloat16, device=context.device)
    query, out = (torch.zeros(1, heads, dim, device=context.device) for _ in range(2))
    index = torch.full((1,), positions - 1, dtype=torch.int64, device=context.device)
    taken = context.recorded_seconds(lambda: attention.run(query, rows, index, dim**-0.5, None, out.view(1, -1)))
    result.figures["attention_s"] = taken
    result.figures["attention_of_bandwidth"] = share(rows.nbytes / taken, context.ceilings.bandwidth)
