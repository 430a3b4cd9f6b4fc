"""Compiled attention, of prompts and of single steps, against plain float64 softmax."""

import math
from collections.abc import Iterator

import numba
import numpy as np
import pytest

from neuron.kernels.attention import flash
from neuron.kernels.attention.cache import KvCache
from neuron.kernels.attention.heads import HEADS
from neuron.kernels.attention.prompt import CompiledAttention, LibraryAttention, spare_columns
from neuron.kernels.attention.step import TILE, attend
from neuron.kernels.decoder.plan import StepShape
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.threads import Team
from tests.kernels.test_tiles import from_bf16, to_bf16

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    made = Team(2)
    yield made
    made.close()


def _shape(cache: KvCache, heads: int, kv_heads: int, dim: int) -> StepShape:
    kind, step = cache.kind, cache.head_bytes
    sizes = (64, 64, heads, kv_heads, dim, 1, 10, dim, 0, int(kind), kind.type_size, step, cache.layer_bytes)
    return StepShape(*sizes, dim**-0.5, 1e-6)


def _filled(kind: GgmlType, kv_heads: int, dim: int, length: int) -> KvCache:
    cache = KvCache(kind, 2, kv_heads, dim, length + 5)
    cache.rows[:, :, :, :length] = np.random.default_rng(0).standard_normal((2, 2, kv_heads, length, dim))
    return cache


def _softmax(query: np.ndarray, cache: KvCache, layer: int, position: int) -> np.ndarray:
    """[n, heads, dim] of query [heads, n, dim]."""
    heads, n, dim = query.shape
    length = position + n
    held = cache.rows[layer, :, :, :length].astype(np.float64).repeat(heads // cache.rows.shape[2], axis=1)
    scores = query.astype(np.float64) @ held[0].transpose(0, 2, 1) / math.sqrt(dim)
    scores[:, np.arange(length)[None] > np.arange(position, length)[:, None]] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed: np.ndarray = ((weights / weights.sum(-1, keepdims=True)) @ held[1]).transpose(1, 0, 2)
    return mixed


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(6, 2, 64), (4, 1, 24), (3, 3, 80)])
@pytest.mark.parametrize(("position", "n"), [(0, 1), (0, 33), (7, 1), (40, 50), (255, 64), (2040, 30), (2049, 3)])
def test_prompts(heads: int, kv_heads: int, dim: int, position: int, n: int, exact: bool, team: Team) -> None:
    cache = _filled(GgmlType.F32 if exact else GgmlType.F16, kv_heads, dim, position + n)
    shape = _shape(cache, heads, kv_heads, dim)
    random = np.random.default_rng(2)
    values = random.standard_normal((heads, n, dim)).astype(np.float32)
    gate = random.standard_normal((n, heads * dim)).astype(np.float32)
    query = values if exact else to_bf16(values)
    cache.hold(position)
    out = np.empty((n, heads * dim), dtype=query.dtype)
    spare = np.full((n, spare_columns(shape)), np.nan, np.float32)
    wanted = _softmax(values if exact else from_bf16(query), cache, 1, position).reshape(n, -1)
    for attention in (CompiledAttention(shape, n, team, exact=exact), LibraryAttention(shape)):
        for scale in (None, gate):
            attention.run(query, cache, 1, position, spare, scale, out)
            expected = wanted if scale is None else wanted / (1 + np.exp(-scale.astype(np.float64)))
            np.testing.assert_allclose(out if exact else from_bf16(out), expected, atol=1e-5 if exact else 3e-2, rtol=0)
    cache.close()


def test_a_stretch_is_whole_blocks_and_a_block_whole_panels() -> None:
    assert flash.STRETCH % flash.BLOCK == 0
    assert flash.BLOCK % flash.PANEL == 0


@pytest.mark.parametrize("kind", [GgmlType.F16, GgmlType.F32])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(9, 3, 64), (8, 2, 256), (5, 1, 48), (6, 1, 80), (2, 2, 24)])
def test_steps(heads: int, kv_heads: int, dim: int, kind: GgmlType) -> None:
    length = 2 * TILE + 9
    cache = _filled(kind, kv_heads, dim, length)
    shape = _shape(cache, heads, kv_heads, dim)
    group, part = heads // kv_heads, (dim + 2) * 4

    @numba.njit
    def run(q, keys, head_bytes, first, last, shape, scores, out):  # type: ignore[no-untyped-def]
        for h in range(kv_heads):
            here = keys + h * head_bytes
            values, place = here + kv_heads * head_bytes, out + h * group * part
            attend(q + h * group * dim * 4, group, here, values, first, last, shape, scores, place, part)

    query = np.random.default_rng(1).standard_normal((heads, dim)).astype(np.float32)
    scores, out = np.zeros(HEADS * TILE, np.float32), np.zeros((heads, dim + 2), np.float32)
    addresses = (query.ctypes.data, cache.address, cache.head_bytes)
    for last in (1, 3, 16, TILE, TILE + 1, length):
        run(*addresses, 0, last, shape, scores.ctypes.data, out.ctypes.data)
        wanted = _softmax(query[:, None], cache, 0, last - 1)[0]
        np.testing.assert_allclose(out[:, 2:] / out[:, 1:2], wanted, atol=1e-5, rtol=0)
    cache.close()
