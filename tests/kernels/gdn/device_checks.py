"""Each CUDA kernel against the float64 references: in the simulator at small shapes, on hardware at real ones.

Run through tests.kernels.gdn.simulator, which prints the largest error of each as JSON.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from neuron.kernels.cuda import cuda, kernel
from neuron.kernels.gdn.chunk import cuda as chunk
from neuron.kernels.gdn.conv_full import cuda as conv_full
from neuron.kernels.gdn.conv_full.naive import conv_full as conv_full_naive
from neuron.kernels.gdn.conv_update import cuda as conv_update
from neuron.kernels.gdn.conv_update.naive import conv_update as conv_update_naive
from neuron.kernels.gdn.decode import cuda as decode
from neuron.kernels.gdn.decode.naive import LayerParameters
from neuron.kernels.gdn.decode.naive import decode as decode_naive
from neuron.kernels.gdn.gating import cuda as gating
from neuron.kernels.gdn.gating.naive import gating as gating_naive
from neuron.kernels.gdn.recurrent import cuda as recurrent
from neuron.kernels.gdn.recurrent.naive import Array
from neuron.kernels.gdn.recurrent.naive import recurrent as recurrent_naive
from tests.kernels.gdn import inputs
from tests.kernels.gdn.inputs import worst


@dataclass(frozen=True, slots=True)
class Size:
    """Widths of a check. `chunk` and `parts` follow the block sizes that a width needs."""

    tokens: int
    key_heads: int
    ratio: int
    key_width: int
    value_width: int
    chunk: int
    parts: int
    columns: int


SMALL = Size(tokens=11, key_heads=2, ratio=2, key_width=8, value_width=4, chunk=4, parts=2, columns=4)
#: Blocks of whole warps, which the simulator does not need.
HARDWARE = Size(tokens=37, key_heads=2, ratio=2, key_width=32, value_width=32, chunk=16, parts=2, columns=16)
REAL = Size(tokens=130, key_heads=4, ratio=3, key_width=128, value_width=128, chunk=64, parts=4, columns=32)


def run(function: Callable[..., Any], grid: tuple[int, ...], block: int, *arguments: Any) -> list[Any]:
    """Launch with float32 copies of the arrays (others as they are); the arrays afterwards."""
    held = [
        cuda.to_device(a.astype(np.float32) if a.dtype == np.float64 else a) if isinstance(a, np.ndarray) else a
        for a in arguments
    ]
    kernel(function)[grid, block](*held)
    return [a.copy_to_host() if isinstance(b, np.ndarray) else a for a, b in zip(held, arguments, strict=True)]


def check_gating(size: Size) -> float:
    random = np.random.default_rng(0)
    heads = size.key_heads * size.ratio
    a, b = (random.standard_normal((size.tokens, heads)) * 8 for _ in range(2))
    a[0, 0], a[-1, 0] = 120.0, -120.0
    decay, bias = -np.exp(random.standard_normal(heads)), random.standard_normal(heads)
    wanted = gating_naive(a, b, decay, bias)
    blocks = -(-a.size // gating.THREADS)
    found = run(gating.gating, (blocks,), gating.THREADS, a, b, decay, bias, np.zeros_like(a), np.zeros_like(a))
    scale = float(np.abs(wanted[0]).max())
    return max(worst(found[4], wanted[0]) / scale, worst(found[5], wanted[1]))


def check_conv_update(size: Size) -> float:
    random = np.random.default_rng(1)
    channels, slots = 2 * size.key_width, np.array([2, 0])
    x, rings = random.standard_normal((2, channels)), random.standard_normal((3, 4, channels))
    weight, positions = random.standard_normal((4, channels)), np.array([6, 3])
    wanted, after = conv_update_naive(x, weight, rings, slots, positions)
    grid = (-(-channels // conv_update.THREADS), 2)
    out = np.zeros_like(x)
    found = run(conv_update.conv_update, grid, conv_update.THREADS, x, weight, rings, slots, positions, out)
    return max(worst(found[5], wanted), worst(found[2], after))


def check_conv_full(size: Size) -> float:
    random = np.random.default_rng(2)
    channels, errors = 2 * size.key_width, []
    for tokens, position in ((1, 0), (2, 5), (size.tokens, 7)):
        x, ring = random.standard_normal((tokens, channels)), random.standard_normal((4, channels))
        weight = random.standard_normal((4, channels))
        wanted, after = conv_full_naive(x, weight, ring, position)
        blocks = -(-channels // conv_full.THREADS)
        out = np.zeros_like(x)
        found = run(conv_full.conv_full, (blocks, tokens), conv_full.THREADS, x, weight, ring, position, out)
        kept = run(conv_full.remember, (blocks,), conv_full.THREADS, x, position, ring)
        errors += [worst(found[4], wanted), worst(kept[2], after)]
    return max(errors)


def check_recurrent(size: Size) -> float:
    made = inputs.rule(size.tokens, size.key_heads, size.ratio, size.key_width, size.value_width)
    wanted, after = recurrent_naive(*made.arguments())
    function = recurrent.make(size.key_width, size.columns, size.parts)
    grid = (size.value_width // size.columns, size.key_heads * size.ratio)
    found = run(function, grid, size.columns * size.parts, *made.arguments(), np.zeros_like(made.v))
    return max(worst(found[6], wanted), worst(found[5], after))


def check_chunk(size: Size) -> float:
    made = inputs.rule(size.tokens, size.key_heads, size.ratio, size.key_width, size.value_width)
    return chunk_error(size, made, *recurrent_naive(*made.arguments()))


def check_chunk_with_like_keys(size: Size) -> float:
    made = inputs.alike(size.tokens, size.key_width, size.value_width)
    return chunk_error(size, made, *recurrent_naive(*made.arguments()))


def chunk_error(size: Size, made: inputs.Rule, wanted: Array, after: Array) -> float:
    heads, chunks = made.v.shape[1], -(-len(made.q) // size.chunk)
    squares = np.zeros((heads, chunks, size.chunk, size.chunk))
    prepare = chunk.make_prepare(size.key_width, size.chunk, min(16, size.key_width // 2))
    total = np.zeros_like(made.g)
    first = run(
        prepare, (chunks, heads), chunk.PREPARE_THREADS, made.q, made.k, made.g, made.beta, total, squares, squares
    )
    scan = chunk.make_scan(size.key_width, size.chunk, size.columns)
    grid = (size.value_width // size.columns, heads)
    given = (made.q, made.k, made.v, made.beta, *first[4:7], made.state, np.zeros_like(made.v))
    found = run(scan, grid, size.columns * chunk.SCAN_GROUPS, *given)
    return max(worst(found[8], wanted), worst(found[7], after))


def _layer(size: Size) -> LayerParameters:
    random = np.random.default_rng(3)
    heads, keys = size.key_heads * size.ratio, size.key_heads * size.key_width
    return LayerParameters(
        random.standard_normal((4, 2 * keys + heads * size.value_width)),
        -np.exp(random.standard_normal(heads)),
        random.standard_normal(heads),
        1 + 0.1 * random.standard_normal(size.value_width),
        1e-6,
        size.key_heads,
        size.key_width,
    )


def check_decode(size: Size, *, bfloat16: bool = False, tiled: bool = False) -> float:
    """Two sequences at odd positions and slots. The reference knows grouped order only; a tiled file is permuted."""
    random = np.random.default_rng(4)
    heads, layer, batch = size.key_heads * size.ratio, _layer(size), 2
    keys, values = size.key_heads * size.key_width, heads * size.value_width
    x, z = random.standard_normal((batch, 2 * keys + values)), random.standard_normal((batch, values))
    if bfloat16:
        x, z = _widened(_bits(x)), _widened(_bits(z))
    a, b = (random.standard_normal((batch, heads)) for _ in range(2))
    rings = random.standard_normal((3, 4, 2 * keys + values))
    states = random.standard_normal((3, heads, size.key_width, size.value_width)) * 0.3
    where = (np.array([2, 0]), np.array([9, 2]))
    wanted, rings_after, states_after = decode_naive(x, z, a, b, layer, rings, states, *where)
    order = np.arange(heads).reshape(size.key_heads, -1).T.reshape(-1) if tiled else np.arange(heads)
    rows = (order[:, None] * size.value_width + np.arange(size.value_width)).reshape(-1)
    channels = np.concatenate([np.arange(2 * keys), 2 * keys + rows])
    projected = [x[:, channels], z[:, rows], np.zeros_like(z)]
    stored = [_bits(value) if bfloat16 else value for value in projected]
    parameters = [a[:, order], b[:, order], layer.conv[:, channels], layer.decay[order], layer.dt_bias[order]]
    arrays = [np.ascontiguousarray(value) for value in (*stored[:2], *parameters, layer.norm)]
    function = decode.make(size.key_width, size.value_width, size.parts, bfloat16=bfloat16)
    changed = (np.ascontiguousarray(rings[..., channels]), states)
    scalars = (np.float32(layer.epsilon), tiled)
    block = size.value_width * size.parts
    found = run(function, (heads, batch), block, *arrays, *scalars, *changed, *where, stored[2])
    result = _widened(found[14]) if bfloat16 else found[14]
    error = worst(result, wanted[:, rows]) / (np.abs(wanted).max() if bfloat16 else 1.0)
    return max(float(error), worst(found[10], rings_after[..., channels]), worst(found[11], states_after))


def check_decode_bfloat16(size: Size) -> float:
    return check_decode(size, bfloat16=True)


def check_decode_tiled(size: Size) -> float:
    return check_decode(size, tiled=True)


def _widened(bits: npt.NDArray[np.int16]) -> npt.NDArray[np.float64]:
    return (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def _bits(values: Array) -> npt.NDArray[np.int16]:
    whole = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)
    return ((whole + 0x7FFF + ((whole >> 16) & 1)) >> 16).astype(np.uint16).view(np.int16)


CHECKS: dict[str, Callable[[Size], float]] = {
    "gating": check_gating,
    "conv_update": check_conv_update,
    "conv_full": check_conv_full,
    "recurrent": check_recurrent,
    "chunk": check_chunk,
    "chunk with like keys": check_chunk_with_like_keys,
    "decode": check_decode,
    "decode in bfloat16": check_decode_bfloat16,
    "decode with tiled heads": check_decode_tiled,
}
#: bfloat16 outputs round to 8 bits.
TOLERANCE = dict.fromkeys(CHECKS, 2e-5) | {"decode in bfloat16": 5e-3}
