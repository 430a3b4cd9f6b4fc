"""CudaBlockLinear: a quantised matrix on a GPU. Imported only where there is one (or its simulator)."""

from collections.abc import Sequence

import torch
from torch.nn import functional

from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.layered.linear import Linear
from neuron.kernels.quant.cuda.products import MOST_ROWS, dequantise, embed, multiply
from neuron.kernels.weights.matrix import Matrix


class CudaBlockLinear:
    """Few rows are multiplied with the blocks themselves, more with all of them as numbers of `dtype`."""

    def __init__(self, kind: GgmlType, cols: int, blocks: torch.Tensor, dtype: torch.dtype) -> None:
        """`blocks` uint8 [rows, row bytes] on the device."""
        self._kind, self._cols, self._blocks, self._dtype = kind, cols, blocks, dtype

    @classmethod
    def placed(cls, matrix: Matrix, dtype: torch.dtype, device: torch.device) -> "CudaBlockLinear":
        return cls(matrix.kind, matrix.cols, torch.from_numpy(matrix.data).to(device), dtype)

    @property
    def rows(self) -> int:
        return self._blocks.shape[0]

    @property
    def cols(self) -> int:
        return self._cols

    @property
    def nbytes(self) -> int:
        return self._blocks.nbytes

    @property
    def scratch_nbytes(self) -> int:
        return self.rows * self.cols * self._dtype.itemsize

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) <= MOST_ROWS:
            out = x.new_empty(len(x), self.rows, dtype=torch.float32)
            multiply(self._kind, self._blocks, x.contiguous(), out)
            return out
        numbers = torch.empty(self.rows, self._cols, dtype=self._dtype, device=x.device)
        dequantise(self._kind, self._blocks, numbers)
        return functional.linear(x.to(self._dtype), numbers)

    def forward_wide(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(x).float()

    def part(self, first: int, last: int) -> "CudaBlockLinear":
        return CudaBlockLinear(self._kind, self._cols, self._blocks[first:last], self._dtype)

    def followed_by(self, others: Sequence[Linear]) -> "CudaBlockLinear | None":
        blocks = [self._blocks]
        for other in others:
            if not isinstance(other, CudaBlockLinear) or other._kind is not self._kind:
                return None
            blocks.append(other._blocks)
        return CudaBlockLinear(self._kind, self._cols, torch.cat(blocks), self._dtype)

    def lookup(self, index: torch.Tensor) -> torch.Tensor:
        out = torch.empty(len(index), self._cols, device=self._blocks.device)
        embed(self._kind, self._blocks, index, out)
        return out
