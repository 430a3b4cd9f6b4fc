"""Placement: where a model's weights go and in which types they work; the host's matrices as linears of a device.

Policy of types: the residual stream, norms, softmax, the sums over ranks and the recurrent state are float32; products
are bfloat16, or float32 where every matrix of the layers is stored so. On a GPU float16 weights become the products'
type, since activations may pass float16's range. On a CPU few rows are float32 throughout, whatever the weights are,
and keys and values float16, as in the compiled engine.
"""

from dataclasses import dataclass
from enum import Enum, auto

import torch

from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.layered.block_linear import BlockLinear
from neuron.kernels.layered.linear import DenseLinear, Linear
from neuron.kernels.threads import Team
from neuron.kernels.weights.matrix import Floats, Matrix
from neuron.kernels.weights.reader import expanded

TYPES = {GgmlType.F32: torch.float32, GgmlType.F16: torch.float16, GgmlType.BF16: torch.bfloat16}


class Kernels(Enum):
    """What runs between the library's products, and the products of blocks."""

    COMPILED = auto()
    """The CPU's compiled functions."""
    TENSORS = auto()
    """Plain tensors where COMPILED has functions that know positions on the host."""
    CUDA = auto()
    """The GPU's kernels; on a CPU in their simulator."""


@dataclass(slots=True)
class Placement:
    device: torch.device
    #: Of products.
    dtype: torch.dtype
    team: Team
    kernels: Kernels

    @property
    def rows_dtype(self) -> torch.dtype:
        """Of keys and values."""
        return torch.float16 if self.kernels is Kernels.COMPILED and not self.exact else self.dtype

    @property
    def exact(self) -> bool:
        return self.dtype is torch.float32

    @property
    def on_host(self) -> bool:
        return self.device.type == "cpu"

    def dense(self, matrix: Matrix) -> torch.Tensor:
        """A matrix of a float type as a tensor [rows, cols] on the device."""
        stored = torch.from_numpy(matrix.data.reshape(-1)).view(TYPES[matrix.kind]).view(matrix.rows, matrix.cols)
        return stored.to(self.device, self.dtype if matrix.kind is GgmlType.F16 else stored.dtype)

    def linear(self, matrix: Matrix) -> Linear:
        """x -> x . matrix^T; blocks stay blocks."""
        if self.kernels is Kernels.COMPILED:
            return BlockLinear(matrix, self.dtype, self.team)
        if matrix.kind in TYPES:
            return DenseLinear(self.dense(matrix))
        if self.kernels is Kernels.TENSORS:
            return BlockLinear(matrix, self.dtype, self.team)
        # numba.cuda is imported where there is a device for it.
        from neuron.kernels.layered.cuda_linear import CudaBlockLinear

        return CudaBlockLinear.placed(matrix, self.dtype, self.device)

    def wide_linear(self, matrix: Matrix) -> Linear:
        """A small matrix whose products must be float32, blocks or not."""
        return DenseLinear(torch.from_numpy(expanded(matrix, self.team)).to(self.device))

    def vector(self, values: Floats) -> torch.Tensor:
        """float32 [elements] on the device."""
        return torch.from_numpy(values).to(self.device)
