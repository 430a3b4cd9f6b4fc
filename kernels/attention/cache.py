"""KvCache: keys and values of one sequence over all full-attention layers, in memory reserved once."""

import contextlib
import mmap

import numpy as np
import numpy.typing as npt

from neuron.kernels.errors import OutOfMemory
from neuron.kernels.formats.ggml_types import GgmlType

_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
#: Linux 6.1; not every Python names it.
_MADV_COLLAPSE = getattr(mmap, "MADV_COLLAPSE", 25)
#: Bytes of a huge page, of the usual size.
HUGE = 1 << 21
#: So many new positions for each further head whose huge pages are made: a single token waits for one head at most.
_PER_HEAD = 32


class KvCache:
    """[layer][K, V][kv head][position][head_dim], float16, bfloat16 or float32.

    The whole context is address space from the start; a page takes memory when a token first touches it, and gives
    it back in `truncate(0)`. `length` is the number of positions held; whoever writes rows moves it with `hold`.
    """

    def __init__(self, kind: GgmlType, layers: int, kv_heads: int, head_dim: int, context: int) -> None:
        self.kind = kind
        self.context = context
        self.length = 0
        self.head_bytes = context * head_dim * kind.type_size
        self.layer_bytes = 2 * kv_heads * self.head_bytes
        size = max(layers * self.layer_bytes, 1)
        try:
            self._memory: mmap.mmap | None = mmap.mmap(
                -1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
            )
        except (OSError, OverflowError, ValueError) as error:
            raise OutOfMemory(f"A cache of {context} positions needs {size} bytes of address space.") from error
        _forbid_huge_pages(self._memory)
        self._bytes: npt.NDArray[np.uint8] = np.frombuffer(self._memory, dtype=np.uint8)
        dtype = {GgmlType.F32: np.float32, GgmlType.F16: np.float16}.get(kind, np.uint16)
        shape = (layers, 2, kv_heads, context, head_dim)
        #: Rows as numbers; bfloat16 as its bits in uint16.
        self.rows: npt.NDArray[np.generic] = self._bytes[: layers * self.layer_bytes].view(dtype).reshape(shape)
        #: Of each layer's heads of keys and values: address; number of the first huge page that it does not fill yet.
        self._heads = self.address + np.arange(layers * 2 * kv_heads, dtype=np.int64) * self.head_bytes
        self._next_pages = -(-self._heads // HUGE)

    @property
    def address(self) -> int:
        return self._bytes.ctypes.data

    def hold(self, length: int) -> None:
        """Hold `length` positions, whose rows are written.

        Rows that fill huge pages become such, a few heads at a time: the same memory, read faster.
        """
        limit = 1 + max(length - self.length, 0) // _PER_HEAD
        self.length = length
        row = self.head_bytes // self.context
        ends = (self._heads + length * row) // HUGE
        for head in np.flatnonzero(ends > self._next_pages)[:limit]:
            self._gather(int(self._next_pages[head]), int(ends[head]))
            self._next_pages[head] = ends[head]

    def truncate(self, keep: int) -> int:
        """Hold only the first `keep` positions; returns how many are held."""
        self.length = min(self.length, max(keep, 0))
        if self.length == 0 and self._memory is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._memory.madvise(mmap.MADV_DONTNEED)
            _forbid_huge_pages(self._memory)
            self._next_pages = -(-self._heads // HUGE)
        return self.length

    def close(self) -> None:
        """Give the memory back. The cache must not be used again."""
        self.length = 0
        self.rows = np.empty(0, dtype=np.uint8)
        self._bytes = np.empty(0, dtype=np.uint8)
        if self._memory is not None:
            memory, self._memory = self._memory, None
            memory.close()

    def _gather(self, first: int, end: int) -> None:
        """Make huge pages first..end-1 of their rows; where the system cannot, they stay as they are."""
        if self._memory is not None and hasattr(mmap, "MADV_HUGEPAGE"):
            part = (first * HUGE - self.address, (end - first) * HUGE)
            with contextlib.suppress(OSError):
                self._memory.madvise(mmap.MADV_HUGEPAGE, *part)
                self._memory.madvise(_MADV_COLLAPSE, *part)


def _forbid_huge_pages(memory: mmap.mmap) -> None:
    """They would take memory for positions that no token reaches."""
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
