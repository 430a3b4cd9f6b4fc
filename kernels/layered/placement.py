"""Placement: where a model's weights go and in which types they work; the host's matrices as linears of a device.

Policy of types: the residual stream, norms, softmax, the sums over ranks and the recurrent state are float32; products
are bfloat16, or float32 where every matrix of the layers is stored so. float16 weights become the products' type,
since activations may pass float16's range.
"""

from dataclasses import dataclass

import torch

from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.layered.block_linear import BlockLinear
from neuron.kernels.layered.linear import DenseLinear, Linear
from neuron.kernels.threads import Team
from neuron.kernels.weights.matrix import Floats, Matrix

TYPES = {GgmlType.F32: torch.float32, GgmlType.F16: torch.float16, GgmlType.BF16: torch.bfloat16}


@dataclass(slots=True)
class Placement:
    device: torch.device
    #: Of products and of the KV cache.
    dtype: torch.dtype
    team: Team

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
        if matrix.kind in TYPES:
            return DenseLinear(self.dense(matrix))
        if self.on_host:
            return BlockLinear(matrix, self.dtype, self.team)
        # numba.cuda is imported where there is a device for it.
        from neuron.kernels.layered.cuda_linear import CudaBlockLinear

        return CudaBlockLinear.placed(matrix, self.dtype, self.device)

    def vector(self, values: Floats) -> torch.Tensor:
        """float32 [elements] on the device."""
        return torch.from_numpy(values).to(self.device)
