"""Random matrices of every stored type, with sane scales."""

import numpy as np
import numpy.typing as npt

from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.weights.matrix import Matrix, empty_matrix

#: Offsets of the float16 scales within a block.
_HALVES = {
    GgmlType.Q4_0: (0,),
    GgmlType.Q4_1: (0, 2),
    GgmlType.Q5_0: (0,),
    GgmlType.Q5_1: (0, 2),
    GgmlType.Q8_0: (0,),
    GgmlType.Q2_K: (80, 82),
    GgmlType.Q3_K: (108,),
    GgmlType.Q4_K: (0, 2),
    GgmlType.Q5_K: (0, 2),
    GgmlType.Q6_K: (208,),
}


def random_matrix(kind: GgmlType, rows: int, cols: int, seed: int = 0) -> Matrix:
    """Every bit pattern of a block may occur; scales are between 0.5 and 1.5, of either sign."""
    random = np.random.default_rng(seed)
    matrix = empty_matrix(kind, rows, cols)
    if kind.block_size == 1:
        matrix.data[:] = _floats(random.standard_normal((rows, cols)).astype(np.float32), kind)
        return matrix
    matrix.data[:] = random.integers(0, 256, matrix.data.shape, dtype=np.uint8)
    blocks = matrix.data.reshape(rows, -1, kind.type_size)
    for offset in _HALVES[kind]:
        scale = random.uniform(0.5, 1.5, blocks.shape[:2]) * random.choice([-1.0, 1.0], blocks.shape[:2])
        blocks[:, :, offset : offset + 2] = scale.astype(np.float16)[..., None].view(np.uint8)
    return matrix


def _floats(values: npt.NDArray[np.float32], kind: GgmlType) -> npt.NDArray[np.uint8]:
    rows = values.shape[0]
    if kind is GgmlType.F16:
        return values.astype(np.float16).view(np.uint8).reshape(rows, -1)
    if kind is GgmlType.BF16:
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(rows, -1)
    return values.view(np.uint8).reshape(rows, -1)
