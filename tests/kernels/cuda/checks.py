"""Each launcher of CUDA kernels against float64: in the simulator at small shapes, on hardware at published ones.

A check returns its largest error, relative to the largest number wanted. See tests.kernels.cuda.simulator.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from neuron.kernels.cuda import SIMULATED
from neuron.kernels.cuda import launch as launch_kernel
from neuron.kernels.formats.dequant import dequantise
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.fused import launch
from neuron.kernels.fused.attend.naive import attend
from neuron.kernels.fused.gate.naive import sigmoid_product, silu_product
from neuron.kernels.fused.rms_norm.naive import rms_norm
from neuron.kernels.fused.rope.naive import head_norm_rope
from neuron.kernels.quant.cuda import products
from tests.kernels.quant.blocks import random_matrix

Array = npt.NDArray[np.float64]
_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class Size:
    """`batches`: rows of activations. `last`: positions of the tokens that attend."""

    rows: int
    cols: int
    batches: tuple[int, ...]
    heads: int
    kv_heads: int
    dim: int
    half: int
    context: int
    last: tuple[int, ...]
    width: int


SMALL = Size(5, 512, (1, 2, 9), 4, 2, 16, 6, 150, (0, 149), 70)
REAL = Size(4099, 5120, (1, 2, 7, 11), 24, 4, 256, 32, 5000, (0, 63, 64, 4999), 5120)


def device() -> torch.device:
    return torch.device("cpu" if SIMULATED else "cuda")


def wide(tensor: torch.Tensor) -> Array:
    return tensor.detach().cpu().double().numpy()


def error(found: torch.Tensor, wanted: npt.NDArray[np.floating[Any]]) -> float:
    values = wide(found)
    scale = max(float(np.abs(wanted).max()), 1e-30)
    return float(np.abs(values - wanted).max()) / scale if np.isfinite(values).all() else float("inf")


@lru_cache(maxsize=1)
def blocks_of(kind: GgmlType, rows: int, cols: int) -> tuple[torch.Tensor, npt.NDArray[np.float32]]:
    """Blocks on the device, and what the gguf package reads from them."""
    matrix = random_matrix(kind, rows, cols)
    numbers = dequantise(matrix.data.reshape(-1), kind, (rows, cols))
    return torch.from_numpy(np.ascontiguousarray(matrix.data)).to(device()), numbers


def randoms(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))
    return made.to(dtype).to(device())


def check_product(kind: GgmlType, size: Size) -> float:
    blocks, numbers = blocks_of(kind, size.rows, size.cols)
    transposed, errors = numbers.astype(np.float64).T, []
    for n in size.batches:
        for dtype in (torch.float32, torch.bfloat16):
            x, out = randoms(n, size.cols, dtype=dtype), torch.full((n, size.rows), torch.nan, device=device())
            products.multiply(kind, blocks, x, out)
            errors.append(error(out, wide(x) @ transposed))
    return max(errors)


def check_tall_product(kind: GgmlType, size: Size) -> float:
    """A block of threads on four rows of the matrix at once, as in large ones; the last of them are not there."""
    blocks, numbers = blocks_of(kind, size.rows, size.cols)
    words, halves = products._views(kind, blocks)
    transposed, errors, threads = numbers.astype(np.float64).T, [], 64
    for n in (1, 2):
        x, out = randoms(n, size.cols), torch.full((n, size.rows), torch.nan, device=device())
        compiled = products._multiplying(kind, 4, n, threads, False, False)
        launch_kernel(compiled, (-(-size.rows // 4),), threads, (words, halves, x, out))
        errors.append(error(out, wide(x) @ transposed))
    return max(errors)


def check_numbers(kind: GgmlType, size: Size) -> float:
    """Bit for bit, in float32 and rounded to bfloat16."""
    blocks, numbers = blocks_of(kind, size.rows, size.cols)
    for dtype in (torch.float32, torch.bfloat16):
        out = torch.full((size.rows, size.cols), torch.nan, dtype=dtype, device=device())
        products.dequantise(kind, blocks, out)
        if not torch.equal(out.cpu(), torch.from_numpy(numbers).to(dtype)):
            return error(out, numbers.astype(np.float64)) + 1.0
    return 0.0


def check_embedding(kind: GgmlType, size: Size) -> float:
    blocks, numbers = blocks_of(kind, size.rows, size.cols)
    tokens = torch.tensor([size.rows - 1, 0, 2, 2], device=device())
    out = torch.full((4, size.cols), torch.nan, device=device())
    products.embed(kind, blocks, tokens, out)
    return error(out, numbers[tokens.cpu().numpy()].astype(np.float64))


def check_norm(size: Size, *, added: bool, dtype: torch.dtype) -> float:
    x, weight = randoms(3, size.width), randoms(size.width, seed=1)
    more, out = randoms(3, size.width, dtype=dtype, seed=2), torch.empty(3, size.width, dtype=dtype, device=device())
    wanted = wide(x) + (wide(more) if added else 0.0)
    if added:
        launch.add_rms_norm(x, more, weight, _EPSILON, out)
    else:
        launch.rms_norm(x, weight, _EPSILON, out)
    return max(error(out, rms_norm(wanted, wide(weight), _EPSILON)), error(x, wanted))


def check_rope(size: Size, *, adjacent: bool, normed: bool, dtype: torch.dtype) -> float:
    n, dim = 2, size.dim
    q, k, v = (
        randoms(n, heads, dim, dtype=dtype, seed=seed)
        for seed, heads in enumerate((size.heads, size.kv_heads, size.kv_heads))
    )
    norms = (randoms(dim, seed=3), randoms(dim, seed=4)) if normed else None
    table, index = randoms(n, 2, size.half), torch.tensor([3, 5], device=device())
    rows = torch.zeros(2, size.kv_heads, 9, dim, dtype=dtype, device=device())
    query = torch.empty(n, size.heads, dim, device=device())
    launch.rope_and_write(q, k, v, norms, _EPSILON, table, adjacent, index, query, rows)
    turned = [
        head_norm_rope(wide(x), None if norms is None else wide(norms[i]), _EPSILON, wide(table), adjacent)
        for i, x in enumerate((q, k))
    ]
    wanted = np.zeros(rows.shape)
    for which, values in enumerate((turned[1], wide(v))):
        wanted[which][:, [3, 5]] = values.transpose(1, 0, 2)
    return max(error(query, turned[0]), error(rows, wanted))


def check_attention(size: Size, *, gated: bool, dtype: torch.dtype) -> float:
    n, shape = len(size.last), (size.heads, size.kv_heads, size.dim)
    # With fewer splits each goes over several tiles.
    attention = launch.Attention(*shape, n, size.context if gated else size.context // 3, device())
    query, rows = randoms(n, size.heads, size.dim), randoms(2, size.kv_heads, size.context, size.dim, dtype=dtype)
    gate, out = randoms(n, size.heads * size.dim, dtype=dtype), torch.empty(n, size.heads * size.dim, device=device())
    index, scale = torch.tensor(size.last, device=device()), size.dim**-0.5
    attention.run(query, rows, index, scale, gate if gated else None, out)
    wanted = attend(wide(query), wide(rows), index.cpu().numpy(), scale).reshape(n, -1)
    return error(out, sigmoid_product(wide(gate), wanted) if gated else wanted)


def check_activation(size: Size, *, silu: bool, dtype: torch.dtype) -> float:
    gate, x = randoms(3, size.width, dtype=dtype), randoms(3, size.width)
    out = torch.empty(3, size.width, dtype=dtype, device=device())
    launched, wanted = (launch.silu_product, silu_product) if silu else (launch.sigmoid_product, sigmoid_product)
    launched(gate, x, out)
    return error(out, wanted(wide(gate), wide(x)))


def _checks() -> dict[str, Callable[[Size], float]]:
    found: dict[str, Callable[[Size], float]] = {}
    for kind in products.BLOCK_KINDS:
        found[f"product {kind.name}"] = partial(check_product, kind)
        if kind in (GgmlType.Q4_K, GgmlType.Q8_0):
            found[f"tall product {kind.name}"] = partial(check_tall_product, kind)
        found[f"numbers {kind.name}"] = partial(check_numbers, kind)
        found[f"embedding {kind.name}"] = partial(check_embedding, kind)
    for dtype, suffix in ((torch.float32, ""), (torch.bfloat16, " in bfloat16")):
        options: dict[str, Any] = {"dtype": dtype}
        found[f"norm{suffix}"] = partial(check_norm, added=False, **options)
        found[f"norm after a sum{suffix}"] = partial(check_norm, added=True, **options)
        found[f"rope{suffix}"] = partial(check_rope, adjacent=False, normed=True, **options)
        found[f"rope without norms{suffix}"] = partial(check_rope, adjacent=False, normed=False, **options)
        found[f"rope of neighbours{suffix}"] = partial(check_rope, adjacent=True, normed=True, **options)
        found[f"attention{suffix}"] = partial(check_attention, gated=False, **options)
        found[f"attention with a gate{suffix}"] = partial(check_attention, gated=True, **options)
        found[f"silu product{suffix}"] = partial(check_activation, silu=True, **options)
        found[f"sigmoid product{suffix}"] = partial(check_activation, silu=False, **options)
    return found


CHECKS = _checks()


def tolerance(check: str) -> float:
    """bfloat16 results round to 8 bits; the cache's keys and values are what the reference gets, too."""
    return 5e-3 if check.endswith("in bfloat16") else 1e-5
