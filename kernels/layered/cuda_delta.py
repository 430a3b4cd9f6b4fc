"""CudaDelta: linear layers on a GPU. One launch for a token, tensors for chunks, the recurrence's kernel for the rest.

Imported only where there is a GPU (or its simulator).
"""

from functools import cache
from typing import Any

import numpy as np
import torch

from neuron.kernels.cuda import WARP, kernel, launch
from neuron.kernels.formats.model_config import LinearAttentionConfig
from neuron.kernels.gdn.decode import cuda as decode
from neuron.kernels.gdn.recurrent import cuda as recurrent
from neuron.kernels.layered.delta import TorchDelta
from neuron.kernels.layered.span import Span
from neuron.kernels.layered.state import DeviceState
from neuron.kernels.layered.weights import LayerParts

#: A thread keeps this many rows of a state's column in registers at most.
_MOST_ROWS = 64
_MOST_THREADS = 1024
#: Columns of a state that one block of the recurrence holds: enough blocks for a large card.
_COLUMNS = 32


class CudaDelta(TorchDelta):
    """Widths that no block of threads fits go the way of tensors."""

    def __init__(self, linear: LinearAttentionConfig, epsilon: float, device: torch.device) -> None:
        super().__init__(linear, epsilon, device)
        self._slots = torch.zeros(1, dtype=torch.int64, device=device)
        self._parts = fitting_parts(linear.key_dim, linear.value_dim)

    def run(
        self,
        layer: LayerParts,
        number: int,
        mixed: torch.Tensor,
        z: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        state: DeviceState,
        span: Span,
    ) -> torch.Tensor:
        if span.n != 1 or self._parts is None:
            return super().run(layer, number, mixed, z, a, b, state, span)
        linear, vectors = self._linear, layer.vectors
        compiled = _decoding(linear.key_dim, linear.value_dim, self._parts, mixed.dtype is torch.bfloat16)
        out = torch.empty_like(z, dtype=mixed.dtype)
        arguments = (
            mixed,
            z.to(mixed.dtype),
            a.float(),
            b.float(),
            vectors["linear_conv"].view(linear.conv_kernel, -1),
            vectors["linear_decay"],
            vectors["linear_dt_bias"],
            vectors["linear_norm"],
            np.float32(self._epsilon),
            linear.tiled_value_heads,
            state.ring(number)[None],
            state.recurrent(number)[None],
            self._slots,
            span.index,
            out,
        )
        launch(compiled, (linear.value_heads, 1), linear.value_dim * self._parts, arguments)
        return out

    def _recurrent(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        state: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        if self._parts is None:
            super()._recurrent(q, k, v, g, beta, state, out)
            return
        linear = self._linear
        columns = _COLUMNS if linear.value_dim % _COLUMNS == 0 else linear.value_dim
        compiled = _recurring(linear.key_dim, columns, self._parts)
        # The kernel divides queries by the root of K itself.
        whole = q * linear.key_dim**0.5
        arguments = (whole, *(tensor.contiguous() for tensor in (k, v, g, beta)), state, out)
        launch(compiled, (linear.value_dim // columns, linear.value_heads), columns * self._parts, arguments)


def fitting_parts(key_dim: int, value_dim: int) -> int | None:
    """Parts of a state's column: whole warps, and rows few enough for registers; None where nothing fits."""
    for parts in (4, 8, 2, 1, 16, 32):
        threads = value_dim * parts
        if key_dim % parts == 0 and key_dim // parts <= _MOST_ROWS and threads % WARP == 0 and threads <= _MOST_THREADS:
            return parts
    return None


@cache
def _decoding(key_dim: int, value_dim: int, parts: int, bfloat16: bool) -> Any:
    return kernel(decode.make(key_dim, value_dim, parts, bfloat16=bfloat16), decode.BLOCKS)


@cache
def _recurring(key_dim: int, columns: int, parts: int) -> Any:
    return kernel(recurrent.make(key_dim, columns, parts))
