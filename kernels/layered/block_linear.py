"""BlockLinear: a matrix on the CPU in any stored type. Few rows meet it as it is stored, more as the products' type."""

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional

from neuron.kernels.decoder.buffers import STEP_ROWS
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.layered.linear import Linear
from neuron.kernels.quant.activations import quants_bytes, scales_bytes
from neuron.kernels.quant.products import expand_matrix, multiply, quantise_rows
from neuron.kernels.threads import Team
from neuron.kernels.weights.matrix import Matrix, aligned_bytes

_STORED = {GgmlType.F32: torch.float32, GgmlType.BF16: torch.bfloat16}


class BlockLinear:
    """`dtype`: of the products of many rows. Activations and result of few rows are float32."""

    def __init__(self, matrix: Matrix, dtype: torch.dtype, team: Team) -> None:
        self._matrix, self._dtype, self._team = matrix, dtype, team

    @property
    def rows(self) -> int:
        return self._matrix.rows

    @property
    def cols(self) -> int:
        return self._matrix.cols

    @property
    def nbytes(self) -> int:
        return self._matrix.nbytes

    @property
    def scratch_nbytes(self) -> int:
        return 0 if _STORED.get(self._matrix.kind) is self._dtype else self.rows * self.cols * self._dtype.itemsize

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] <= STEP_ROWS:
            return self._by_blocks(x.float().contiguous())
        return functional.linear(x.to(self._dtype), self._numbers())

    def forward_wide(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(x).float()

    def part(self, first: int, last: int) -> "BlockLinear":
        held = self._matrix
        rows = Matrix(held.kind, last - first, held.cols, held.data[first:last])
        return BlockLinear(rows, self._dtype, self._team)

    def followed_by(self, others: Sequence[Linear]) -> None:
        """Each is a product of its own on every thread: nothing is won."""

    def lookup(self, index: torch.Tensor) -> torch.Tensor:
        held, chosen = self._matrix, index.numpy()
        data = aligned_bytes(len(chosen) * held.row_bytes).reshape(len(chosen), held.row_bytes)
        np.take(held.data, chosen, axis=0, out=data, mode="clip")
        return self._expanded(Matrix(held.kind, len(chosen), held.cols, data), torch.float32)

    def _numbers(self) -> torch.Tensor:
        held = self._matrix
        if _STORED.get(held.kind) is self._dtype:
            return torch.from_numpy(held.data.reshape(-1)).view(self._dtype).view(held.rows, held.cols)
        return self._expanded(held, self._dtype)

    def _by_blocks(self, x: torch.Tensor) -> torch.Tensor:
        """float32 x [n, cols] with the rows as stored; for blocks as int16 groups, see quant.activations."""
        held, (n, cols) = self._matrix, x.shape
        quants, scales = (torch.empty(n, size(cols), dtype=torch.uint8) for size in (quants_bytes, scales_bytes))
        out = torch.empty(n, held.rows)
        kind = int(held.kind)
        steps = (cols * 4, quants.shape[1], scales.shape[1])
        addresses = (x.data_ptr(), quants.data_ptr(), scales.data_ptr())
        pairs = (number for pair in zip(addresses, steps, strict=True) for number in pair)
        quantise_rows(kind, n, cols, *pairs)
        weights = (kind, held.address, held.row_bytes, held.rows, cols)
        self._team.run(multiply, *weights, n, *addresses, *steps, out.data_ptr(), held.rows * 4)
        return out

    def _expanded(self, matrix: Matrix, dtype: torch.dtype) -> torch.Tensor:
        out = torch.empty(matrix.rows, matrix.cols, dtype=dtype)
        narrow = int(dtype is torch.bfloat16)
        source = (int(matrix.kind), matrix.address, matrix.row_bytes, matrix.rows, matrix.cols)
        self._team.run(expand_matrix, *source, out.data_ptr(), matrix.cols * out.element_size(), narrow)
        return out
