"""KvCache: keys and values of one sequence over all full-attention layers, in memory reserved once."""

import mmap

import numpy as np
import numpy.typing as npt

from neuron.kernels.errors import OutOfMemory
from neuron.kernels.formats.ggml_types import GgmlType

_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


class KvCache:
    """[layer][K, V][kv head][position][head_dim], float16, bfloat16 or float32.

    The whole context is address space from the start; a page takes memory when a token first touches it, and gives
    it back in `truncate(0)`. `length` is the number of positions held; whoever writes rows moves it.
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
        # Huge pages would take memory for positions that no token reaches.
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            self._memory.madvise(mmap.MADV_NOHUGEPAGE)
        self._bytes: npt.NDArray[np.uint8] = np.frombuffer(self._memory, dtype=np.uint8)
        dtype = {GgmlType.F32: np.float32, GgmlType.F16: np.float16}.get(kind, np.uint16)
        shape = (layers, 2, kv_heads, context, head_dim)
        #: Rows as numbers; bfloat16 as its bits in uint16.
        self.rows: npt.NDArray[np.generic] = self._bytes[: layers * self.layer_bytes].view(dtype).reshape(shape)

    @property
    def address(self) -> int:
        return self._bytes.ctypes.data

    def truncate(self, keep: int) -> int:
        """Hold only the first `keep` positions; returns how many are held."""
        self.length = min(self.length, max(keep, 0))
        if self.length == 0 and self._memory is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._memory.madvise(mmap.MADV_DONTNEED)
        return self.length

    def close(self) -> None:
        """Give the memory back. The cache must not be used again."""
        self.length = 0
        self.rows = np.empty(0, dtype=np.uint8)
        self._bytes = np.empty(0, dtype=np.uint8)
        if self._memory is not None:
            memory, self._memory = self._memory, None
            memory.close()
