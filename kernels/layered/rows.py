"""KV rows of one sequence: HostRows are the compiled engine's cache, DeviceRows memory of a device."""

from typing import Protocol

import torch

from neuron.kernels.attention.cache import KvCache
from neuron.kernels.formats.ggml_types import GgmlType


class KvRows(Protocol):
    """`rows` [layer, K and V, kv head, position, head_dim] for `context` positions; they never move."""

    rows: torch.Tensor
    context: int

    def empty(self) -> None:
        """Nothing is held any more: pages may go back."""

    def close(self) -> None: ...


class HostRows:
    """The whole context is address space from the start; see KvCache."""

    def __init__(self, layers: int, kv_heads: int, head_dim: int, context: int, dtype: torch.dtype) -> None:
        """`dtype`: float32 or float16."""
        kind = GgmlType.F32 if dtype is torch.float32 else GgmlType.F16
        self._cache = KvCache(kind, layers, kv_heads, head_dim, context)
        self.context = context
        self.rows = torch.from_numpy(self._cache.rows)

    def empty(self) -> None:
        self._cache.truncate(0)

    def close(self) -> None:
        self.rows = torch.empty(0)
        self._cache.close()


class DeviceRows:
    """Memory of the device for the whole context, taken once: preflight counts it, and recorded steps point into it."""

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, context: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.context = context
        # Zeros: masked positions are multiplied with, and must be numbers.
        self.rows = torch.zeros(layers, 2, kv_heads, context, head_dim, dtype=dtype, device=device)

    def empty(self) -> None:
        pass

    def close(self) -> None:
        self.rows = self.rows.new_empty(0)
