"""KV rows of one sequence on a device: HostRows are the compiled engine's cache, DeviceRows grow as tokens come."""

from typing import Protocol

import torch

from neuron.kernels.attention.cache import KvCache
from neuron.kernels.formats.ggml_types import GgmlType

#: Positions of the first allocation on a device, and what an emptied sequence may keep.
FIRST_POSITIONS = 4096


class KvRows(Protocol):
    """`rows` [layer, K and V, kv head, position, head_dim] in the products' type; `context` bounds the positions."""

    rows: torch.Tensor
    context: int

    def reserve(self, positions: int) -> bool:
        """Room for `positions`, what is held staying; True when the memory has moved."""

    def empty(self) -> bool:
        """Nothing is held any more: memory may go back. True when it has moved."""

    def close(self) -> None: ...


class HostRows:
    """The whole context is address space from the start; see KvCache."""

    def __init__(self, layers: int, kv_heads: int, head_dim: int, context: int, dtype: torch.dtype) -> None:
        """`dtype`: float32 or float16."""
        kind = GgmlType.F32 if dtype is torch.float32 else GgmlType.F16
        self._cache = KvCache(kind, layers, kv_heads, head_dim, context)
        self.context = context
        self.rows = torch.from_numpy(self._cache.rows)

    def reserve(self, positions: int) -> bool:
        return False

    def empty(self) -> bool:
        self._cache.truncate(0)
        return False

    def close(self) -> None:
        self.rows = torch.empty(0)
        self._cache.close()


class DeviceRows:
    """Doubles when full, since a long context is mostly not reached."""

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, context: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.context = context
        self._shape, self._head_dim = (layers, 2, kv_heads), head_dim
        self._dtype, self._device = dtype, device
        self.rows = self._allocate(min(FIRST_POSITIONS, context))

    @property
    def capacity(self) -> int:
        return self.rows.shape[3]

    def reserve(self, positions: int) -> bool:
        if positions <= self.capacity:
            return False
        old = self.rows
        grown = self._allocate(min(self.context, max(positions, 2 * self.capacity)))
        grown[:, :, :, : old.shape[3]] = old
        self.rows = grown
        return True

    def empty(self) -> bool:
        if self.capacity <= FIRST_POSITIONS:
            return False
        self.rows = torch.empty(0, device=self._device)
        self.rows = self._allocate(min(FIRST_POSITIONS, self.context))
        return True

    def close(self) -> None:
        self.rows = torch.empty(*self._shape, 0, self._head_dim, device=self._device)

    def _allocate(self, positions: int) -> torch.Tensor:
        """Zeros: masked positions are multiplied with, and must be numbers."""
        shape = (*self._shape, positions, self._head_dim)
        return torch.zeros(shape, dtype=self._dtype, device=self._device)
