"""Arena: the matrices of one model side by side on huge pages. Used by decoder.weights while it loads.

Through pages of 4 KiB a step reads matrices of less than a few megabytes at two thirds of the memory's rate, since it
looks up an address for every page. Large matrices get huge pages from numpy.
"""

import contextlib
import mmap

import numpy as np

from neuron.kernels.weights.matrix import ALIGNMENT, TAIL, Bytes, Matrix

#: Bytes of a huge page, of the usual size.
_HUGE = 1 << 21
#: Address space taken at a time. What holds no weight takes no memory, but for the rest of each stretch's last page.
_STRETCH = 128 * _HUGE
#: Matrices of more bytes stay where they are.
_LARGE = 16 * _HUGE


class Arena:
    def __init__(self) -> None:
        self._free: Bytes = np.empty(0, dtype=np.uint8)

    def settled(self, matrix: Matrix) -> Matrix:
        """The same matrix in the arena if it is small enough to gain from that, and there is room; else itself."""
        size = -(-(matrix.nbytes + TAIL) // ALIGNMENT) * ALIGNMENT
        if size > _LARGE:
            return matrix
        if size > self._free.size:
            self._free = _stretch()
        if size > self._free.size:
            return matrix
        data, self._free = self._free[: matrix.nbytes].reshape(matrix.data.shape), self._free[size:]
        np.copyto(data, matrix.data)
        return Matrix(matrix.kind, matrix.rows, matrix.cols, data)


def _stretch() -> Bytes:
    """uint8 [_STRETCH] from the beginning of a huge page on; empty where there is no such memory."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.empty(0, dtype=np.uint8)
    with contextlib.suppress(OSError):
        memory = mmap.mmap(-1, _STRETCH + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
        held: Bytes = np.frombuffer(memory, dtype=np.uint8)
        skip = -held.ctypes.data % _HUGE
        return held[skip : skip + _STRETCH]
    return np.empty(0, dtype=np.uint8)
