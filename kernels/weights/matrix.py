"""Matrix and its allocation: a weight [rows, cols] in private, aligned memory, stored as rows of GGML blocks."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from neuron.kernels.errors import OutOfMemory
from neuron.kernels.formats.ggml_types import GgmlType

ALIGNMENT = 64
#: Vector code reads a little past the last block; the memory behind it must be ours.
TAIL = 64

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(slots=True, frozen=True)
class Matrix:
    """`data` uint8 [rows, row bytes], C-contiguous, 64-byte aligned, with TAIL readable bytes behind it."""

    kind: GgmlType
    rows: int
    cols: int
    data: Bytes

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    @property
    def row_bytes(self) -> int:
        return int(self.data.shape[1])

    @property
    def address(self) -> int:
        return int(self.data.ctypes.data)


def aligned_bytes(size: int) -> Bytes:
    """uint8 [size], 64-byte aligned, uninitialised. Raises OutOfMemory."""
    try:
        raw = np.empty(size + ALIGNMENT + TAIL, dtype=np.uint8)
    except MemoryError as error:
        raise OutOfMemory(f"{size} bytes for a weight could not be allocated.") from error
    skip = -raw.ctypes.data % ALIGNMENT
    return raw[skip : skip + size]


def empty_matrix(kind: GgmlType, rows: int, cols: int) -> Matrix:
    """A matrix to be filled by the caller."""
    row_bytes = kind.nbytes(cols)
    return Matrix(kind, rows, cols, aligned_bytes(rows * row_bytes).reshape(rows, row_bytes))
