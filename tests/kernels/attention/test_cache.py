"""KvCache: address space first, memory when touched, given back when emptied."""

import mmap

import numpy as np
import psutil
import pytest

from neuron.kernels.attention.cache import HUGE, KvCache
from neuron.kernels.formats.ggml_types import GgmlType


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)


def test_memory_comes_with_the_tokens_and_goes_with_them() -> None:
    before = _resident()
    cache = KvCache(GgmlType.F16, 4, 2, 64, 1 << 20)
    assert cache.rows.nbytes == 4 * 2 * 2 * (1 << 20) * 64 * 2
    assert _resident() - before < 8 << 20
    cache.rows[:, :, :, : 1 << 14] = 1.0
    cache.hold(1 << 14)
    written = 4 * 2 * 2 * (1 << 14) * 64 * 2
    assert _resident() - before > 0.9 * written
    assert cache.truncate(0) == 0
    assert _resident() - before < 8 << 20
    assert not cache.rows[0, 0, 0, :100].any()
    cache.close()


def test_truncation_only_shortens() -> None:
    cache = KvCache(GgmlType.F32, 1, 1, 8, 32)
    cache.hold(20)
    assert cache.truncate(25) == 20
    assert cache.truncate(7) == 7
    assert cache.truncate(-3) == 0
    cache.close()
    cache.close()


class _Watched:
    """A mapping that notes which parts of it are to be huge pages."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self.parts: list[tuple[int, int]] = []

    def madvise(self, option: int, start: int = 0, length: int | None = None) -> None:
        if length is None:
            self._memory.madvise(option)
            return
        if option == mmap.MADV_HUGEPAGE:
            self.parts += [(at, at + HUGE) for at in range(start, start + length, HUGE)]
        self._memory.madvise(option, start, length)

    def close(self) -> None:
        self._memory.close()


def test_huge_pages_are_made_of_full_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once, one head at a token; rows keep their numbers and their memory, and an emptied cache begins with small
    pages again."""
    layers, kv_heads, dim = 2, 3, 64
    row, heads = dim * 4, layers * 2 * kv_heads
    # Heads begin anywhere in a huge page.
    cache = KvCache(GgmlType.F32, layers, kv_heads, dim, 40_001)
    assert cache._memory is not None
    watched = _Watched(cache._memory)
    monkeypatch.setattr(cache, "_memory", watched)
    length = 3 * HUGE // row
    cache.rows[:, :, :, :length] = np.arange(length, dtype=np.float32)[:, None]
    before = _resident()
    cache.hold(length - heads)
    met = len(watched.parts)
    for held in range(length - heads, length):
        cache.hold(held + 1)
        assert len(watched.parts) - met <= 3
        met = len(watched.parts)
    cache.hold(length)
    full = [(head * cache.head_bytes, head * cache.head_bytes + length * row) for head in range(heads)]
    assert len(set(watched.parts)) == len(watched.parts) >= 2 * heads
    assert all((cache.address + start) % HUGE == 0 for start, _ in watched.parts)
    assert all(any(low <= start and end <= high for low, high in full) for start, end in watched.parts)
    assert abs(_resident() - before) < HUGE
    assert (cache.rows[:, :, :, :length] == np.arange(length, dtype=np.float32)[:, None]).all()
    assert not cache.rows[:, :, :, length:].any()
    cache.truncate(0)
    before = _resident()
    cache.rows[:, :, :, :1] = 1.0
    assert _resident() - before < HUGE
    cache.close()
