"""Linear: a weight matrix as a function of rows, whatever it is stored as. DenseLinear: a matrix of floats."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch.nn import functional


class Linear(Protocol):
    """x [n, cols] -> x . W^T [n, rows]. The result's type is the linear's own; callers that mind convert it."""

    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def scratch_nbytes(self) -> int:
        """What a product of many rows takes beside the matrix: its blocks as numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor: ...

    def forward_wide(self, x: torch.Tensor) -> torch.Tensor:
        """`forward` in float32, without rounding between, where the device can: for logits and what ranks sum up."""

    def part(self, first: int, last: int) -> "Linear":
        """Rows first..last-1 as a linear of the same memory."""

    def followed_by(self, others: "Sequence[Linear]") -> "Linear | None":
        """One linear with the rows of `others` behind these, in new memory; None where they are stored unlike."""

    def lookup(self, index: torch.Tensor) -> torch.Tensor:
        """Rows `index` int64 [n] themselves: float32 [n, cols]."""


class DenseLinear:
    """Products in the type of `weight` [rows, cols]."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight

    @property
    def rows(self) -> int:
        return self._weight.shape[0]

    @property
    def cols(self) -> int:
        return self._weight.shape[1]

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes

    @property
    def scratch_nbytes(self) -> int:
        return 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x.to(self._weight.dtype), self._weight)

    def forward_wide(self, x: torch.Tensor) -> torch.Tensor:
        weight = self._weight
        if weight.is_cuda and weight.dtype is torch.bfloat16:
            return torch.mm(x.to(weight.dtype), weight.t(), out_dtype=torch.float32)
        return self.forward(x).float()

    def part(self, first: int, last: int) -> "DenseLinear":
        return DenseLinear(self._weight[first:last])

    def followed_by(self, others: Sequence[Linear]) -> "DenseLinear | None":
        weights = [self._weight]
        for other in others:
            if not isinstance(other, DenseLinear) or other._weight.dtype != self._weight.dtype:
                return None
            weights.append(other._weight)
        return DenseLinear(torch.cat(weights))

    def lookup(self, index: torch.Tensor) -> torch.Tensor:
        return functional.embedding(index, self._weight).float()
