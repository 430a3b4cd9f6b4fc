"""Products of matrices in GGML blocks with torch tensors on the GPU: few rows on the blocks, many through a tile.

Launches go to torch's current stream and allocate nothing, so a CUDA graph can hold them; every kind and shape must
have run once before. In the simulator the tensors are on the CPU.
"""

from functools import cache
from typing import Any

import torch

from neuron.kernels.cuda import kernel, launch
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.quant.cuda import expand, matvec
from neuron.kernels.quant.cuda.unpack import BLOCK_KINDS, UNIT, layout

#: From more rows of activations on, dequantising and a library product are the faster way.
MOST_ROWS = 64
_FLOATS = (torch.float32, torch.bfloat16)

__all__ = ["BLOCK_KINDS", "MOST_ROWS", "dequantise", "embed", "multiply"]


def multiply(kind: GgmlType, blocks: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
    """out [n, rows] = x [n, cols] times the transposed matrix in `blocks` uint8 [rows, row bytes].

    x and out are float32 or bfloat16, contiguous; sums are float32. Meant for n up to MOST_ROWS.
    Raises ValueError for shapes and types that do not fit.
    """
    _check(kind, blocks, x.shape[1], out)
    if not len(x) or out.shape != (x.shape[0], blocks.shape[0]) or x.dtype not in _FLOATS or not x.is_contiguous():
        raise ValueError(f"x {tuple(x.shape)} {x.dtype} does not make out {tuple(out.shape)}")
    n, rows = out.shape
    batch = n if n <= 2 else matvec.MOST_BATCH
    tall, threads = _block(rows, x.shape[1], batch)
    words, halves = _views(kind, blocks)
    pairs = x.dtype is torch.bfloat16
    compiled = _multiplying(kind, tall, batch, threads, pairs, out.dtype is torch.bfloat16)
    grid = (-(-rows // tall) * -(-n // batch),)
    launch(compiled, grid, threads, (words, halves, x.view(torch.int32) if pairs else x, out))


def dequantise(kind: GgmlType, blocks: torch.Tensor, out: torch.Tensor) -> None:
    """out [rows, cols], float32 or bfloat16, of `blocks` uint8 [rows, row bytes]: the gguf package's very numbers."""
    _check(kind, blocks, out.shape[1], out)
    if out.shape[0] != blocks.shape[0]:
        raise ValueError(f"{blocks.shape[0]} rows do not fill {tuple(out.shape)}")
    _expand(kind, blocks, _no_rows(blocks.device), out, chosen=False)


def embed(kind: GgmlType, blocks: torch.Tensor, tokens: torch.Tensor, out: torch.Tensor) -> None:
    """out [n, cols], float32 or bfloat16: the rows of `blocks` that tokens int64 [n] on the device name.

    An id outside the matrix is taken for the nearest one inside: checking it is the caller's business.
    """
    _check(kind, blocks, out.shape[1], out)
    if tokens.shape != (out.shape[0],) or tokens.dtype is not torch.int64:
        raise ValueError(f"tokens {tuple(tokens.shape)} {tokens.dtype} do not fill {tuple(out.shape)}")
    _expand(kind, blocks, tokens, out, chosen=True)


def _expand(kind: GgmlType, blocks: torch.Tensor, rows: torch.Tensor, out: torch.Tensor, *, chosen: bool) -> None:
    words, halves = _views(kind, blocks)
    compiled = _expanding(kind, out.dtype is torch.bfloat16, chosen)
    grid = (out.shape[0], -(-out.shape[1] // (UNIT * expand.THREADS)))
    launch(compiled, grid, expand.THREADS, (words, halves, rows, out))


def _block(rows: int, cols: int, batch: int) -> tuple[int, int]:
    """Matrix rows and threads of a block: enough blocks for a large card, enough loads in flight for a thread."""
    tall = 4 if rows >= 4096 else 2 if rows >= 2048 else 1
    return min(tall, matvec.MOST_BATCH // batch), 128 if cols >= 8192 else 64 if cols >= 1024 else 32


def _check(kind: GgmlType, blocks: torch.Tensor, cols: int, out: torch.Tensor) -> None:
    if kind not in BLOCK_KINDS:
        raise ValueError(f"{kind.name} is not stored in blocks")
    fits = cols % kind.block_size == 0 and blocks.ndim == 2 and blocks.shape[1] == kind.nbytes(cols)
    if not fits or blocks.dtype is not torch.uint8 or not blocks.is_contiguous():
        raise ValueError(f"blocks {tuple(blocks.shape)} {blocks.dtype} do not hold rows of {cols} {kind.name}")
    if out.dtype not in _FLOATS or not out.is_contiguous():
        raise ValueError(f"out of {out.dtype} must be contiguous float32 or bfloat16")


def _views(kind: GgmlType, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    words = torch.int32 if layout(kind).wide else torch.int16
    return blocks.view(words), blocks.view(torch.float16)


@cache
def _no_rows(device: torch.device) -> torch.Tensor:
    """What stands for the names of rows where all are wanted."""
    return torch.zeros(1, dtype=torch.int64, device=device)


@cache
def _multiplying(kind: GgmlType, tall: int, batch: int, threads: int, pairs: bool, bfloat16: bool) -> Any:
    return kernel(matvec.make(layout(kind), tall, batch, threads, bfloat16_in=pairs, bfloat16_out=bfloat16))


@cache
def _expanding(kind: GgmlType, bfloat16: bool, chosen: bool) -> Any:
    return kernel(expand.make(layout(kind), bfloat16=bfloat16, chosen=chosen))
