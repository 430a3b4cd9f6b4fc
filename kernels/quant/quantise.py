"""quantise_into: float32 rows to a matrix of any stored type, on all threads. For the loader."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.quant import quantise_blocks as blocks
from neuron.kernels.quant import quantise_supers as supers
from neuron.kernels.quant.products import narrow_matrix
from neuron.kernels.threads import Team

#: The function of each type, and what it takes beside the weights.
_BLOCKS: Mapping[GgmlType, tuple[Callable[..., Any], tuple[float, ...]]] = {
    GgmlType.Q4_0: (blocks.quantise_signed, (18, 8)),
    GgmlType.Q4_1: (blocks.quantise_offset, (20, 15)),
    GgmlType.Q5_0: (blocks.quantise_signed, (22, 16)),
    GgmlType.Q5_1: (blocks.quantise_offset, (24, 31)),
    GgmlType.Q8_0: (blocks.quantise_q8_0, ()),
    GgmlType.Q2_K: (supers.quantise_q2_k, ()),
    GgmlType.Q3_K: (supers.quantise_q3_k, ()),
    GgmlType.Q4_K: (supers.quantise_offset, (144, 15, -1.0, 20)),
    GgmlType.Q5_K: (supers.quantise_offset, (176, 31, -0.5, 15)),
    GgmlType.Q6_K: (supers.quantise_q6_k, ()),
}


def quantise_into(kind: GgmlType, values: npt.NDArray[np.float32], out: npt.NDArray[np.uint8], team: Team) -> int:
    """Write `values` float32 [rows, cols] as rows of `kind` to `out` uint8 [rows, row bytes], both C-contiguous.

    The bytes do not depend on the number of threads. Returns how many blocks held weights that are not finite, or
    too large for float16 scales (always 0 for the float types).
    """
    rows, cols = values.shape
    if kind not in _BLOCKS:
        team.run(narrow_matrix, int(kind), values.ctypes.data, rows, cols, out.ctypes.data, kind.nbytes(cols))
        return 0
    function, given = _BLOCKS[kind]
    bad = np.zeros(team.threads, dtype=np.int64)
    team.run(function, values, out, bad, *given)
    return int(bad.sum())
