"""A stored matrix made another type on its way into memory: by chunks of rows, never whole in float32."""

import numpy as np

from neuron.kernels.errors import UnsupportedLoad, WeightMismatch
from neuron.kernels.formats.errors import shown
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.formats.in_situ import IN_SITU, in_situ_name
from neuron.kernels.quant.products import expand_matrix
from neuron.kernels.quant.quantise import quantise_into
from neuron.kernels.threads import Team
from neuron.kernels.weights.matrix import Floats, Matrix, aligned_bytes, empty_matrix
from neuron.kernels.weights.stored import StoredRows

#: Weights in one chunk: 16 MiB as float32.
CHUNK_WEIGHTS = 1 << 22


def quant_type(quant: str | None) -> GgmlType | None:
    """What a load's `quant` means; None keeps what is stored. Raises UnsupportedLoad unsupported_quant."""
    if quant is None:
        return None
    name = in_situ_name(quant)
    if name is None:
        raise UnsupportedLoad("unsupported_quant", f"In-situ quantisation to {quant[:64]} is not available.")
    return IN_SITU[name]


def converted(source: StoredRows, kind: GgmlType, team: Team, name: str) -> Matrix:
    """Matrix of `kind` from a stored one. Raises WeightMismatch for weights it cannot hold.

    Each chunk is copied first: vector code reads a little past the last block, where a mapped file may end.
    """
    rows, cols, row_bytes = source.rows, source.cols, source.row_bytes
    result = empty_matrix(kind, rows, cols)
    step = min(rows, max(1, CHUNK_WEIGHTS // cols))
    copy = aligned_bytes(step * row_bytes).reshape(step, row_bytes)
    values = aligned_bytes(step * cols * 4).view(np.float32).reshape(step, cols)
    for first in range(0, rows, step):
        count = min(step, rows - first)
        source.copy(first, copy[:count])
        address, out = copy.ctypes.data, values.ctypes.data
        team.run(expand_matrix, int(source.kind), address, row_bytes, count, cols, out, cols * 4, 0)
        write_rows(values[:count], result, first, team, name)
    return result


def write_rows(values: Floats, result: Matrix, first: int, team: Team, name: str) -> None:
    """float32 [n, cols] as the rows of `result` from `first` on. Raises WeightMismatch naming the tensor."""
    bad = quantise_into(result.kind, values, result.data[first : first + values.shape[0]], team)
    if bad:
        raise WeightMismatch(
            f"Tensor {shown(name)} holds weights that are not finite or too large to be quantised as "
            f"{result.kind.name.lower()}."
        )
