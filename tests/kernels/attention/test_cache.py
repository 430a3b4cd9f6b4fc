"""KvCache: address space first, memory when touched, given back when emptied."""

import psutil

from neuron.kernels.attention.cache import KvCache
from neuron.kernels.formats.ggml_types import GgmlType


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)


def test_memory_comes_with_the_tokens_and_goes_with_them() -> None:
    before = _resident()
    cache = KvCache(GgmlType.F16, 4, 2, 64, 1 << 20)
    assert cache.rows.nbytes == 4 * 2 * 2 * (1 << 20) * 64 * 2
    assert _resident() - before < 8 << 20
    cache.rows[:, :, :, : 1 << 14] = 1.0
    cache.length = 1 << 14
    written = 4 * 2 * 2 * (1 << 14) * 64 * 2
    assert _resident() - before > 0.9 * written
    assert cache.truncate(0) == 0
    assert _resident() - before < 8 << 20
    assert not cache.rows[0, 0, 0, :100].any()
    cache.close()


def test_truncation_only_shortens() -> None:
    cache = KvCache(GgmlType.F32, 1, 1, 8, 32)
    cache.length = 20
    assert cache.truncate(25) == 20
    assert cache.truncate(7) == 7
    assert cache.truncate(-3) == 0
    cache.close()
    cache.close()
