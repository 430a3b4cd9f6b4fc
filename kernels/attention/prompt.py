"""PromptAttention: many queries of one sequence over its cache, by code of this package or by the library."""

from typing import Protocol

import torch

from neuron.kernels.attention.cache import KvCache
from neuron.kernels.attention.flash import flash, padded, private_bytes, shared_bytes
from neuron.kernels.attention.prefill import attend
from neuron.kernels.decoder.plan import StepShape
from neuron.kernels.threads import Team


class PromptAttention(Protocol):
    @property
    def nbytes(self) -> int: ...

    def run(
        self,
        query: torch.Tensor,
        cache: KvCache,
        layer: int,
        spare: torch.Tensor,
        gate: torch.Tensor | None,
        out: torch.Tensor,
    ) -> None:
        """query [heads, n, head_dim] at the cache's length and on, whose rows are written already, to `out` [n, heads *
        head_dim], times the sigmoid of `gate` float32 of its shape. `spare`: float32 [n, heads, padded head_dim].
        """


class CompiledAttention:
    """flash.py, for at most `rows` queries."""

    def __init__(self, shape: StepShape, rows: int, team: Team, *, exact: bool) -> None:
        self._shape, self._team, self._exact = shape, team, int(exact)
        self._private = private_bytes(shape.head_dim, exact=exact)
        shared = shared_bytes(shape.kv_heads, shape.head_dim, exact=exact)
        self._unpacked = torch.empty(shared, dtype=torch.uint8)
        self._scratch = torch.empty(team.threads * self._private, dtype=torch.uint8)
        self._marks = torch.empty(shape.heads * rows * 2)

    @property
    def nbytes(self) -> int:
        return self._unpacked.numel() + self._scratch.numel() + self._marks.numel() * 4

    def run(
        self,
        query: torch.Tensor,
        cache: KvCache,
        layer: int,
        spare: torch.Tensor,
        gate: torch.Tensor | None,
        out: torch.Tensor,
    ) -> None:
        unpacked, scratch, marks = (held.data_ptr() for held in (self._unpacked, self._scratch, self._marks))
        self._team.run(
            flash,
            query.shape[1],
            cache.length,
            self._exact,
            query.data_ptr(),
            cache.address + layer * cache.layer_bytes,
            self._shape,
            (self._team.barrier_state, unpacked, scratch, self._private, spare.data_ptr(), marks),
            0 if gate is None else gate.data_ptr(),
            out.data_ptr(),
            out.stride(0) * out.element_size(),
        )


class LibraryAttention:
    """torch's fused attention."""

    def __init__(self, shape: StepShape) -> None:
        self._scale = shape.scale

    @property
    def nbytes(self) -> int:
        return 0

    def run(
        self,
        query: torch.Tensor,
        cache: KvCache,
        layer: int,
        spare: torch.Tensor,
        gate: torch.Tensor | None,
        out: torch.Tensor,
    ) -> None:
        mixed = attend(query, cache, layer, cache.length, self._scale)
        out.copy_(mixed if gate is None else mixed * torch.sigmoid(gate))


def spare_columns(shape: StepShape) -> int:
    """Of one row of `spare`."""
    return shape.heads * padded(shape.head_dim)
