"""PromptAttention: many queries of one sequence over its cache, by code of this package or by the library."""

from typing import Protocol

import numpy as np

from neuron.kernels.attention.cache import KvCache
from neuron.kernels.attention.flash import flash, padded, private_bytes, shared_bytes
from neuron.kernels.decoder.plan import StepShape
from neuron.kernels.decoder.products import Activations, tensor
from neuron.kernels.threads import Team
from neuron.kernels.weights.matrix import Floats


class PromptAttention(Protocol):
    @property
    def nbytes(self) -> int: ...

    def run(
        self,
        query: Activations,
        cache: KvCache,
        layer: int,
        position: int,
        spare: Floats,
        gate: Floats | None,
        out: Activations,
    ) -> None:
        """query [heads, n, head_dim] at `position` and on, whose rows are in the cache already, to `out` [n, heads *
        head_dim], times the sigmoid of `gate` float32 of its shape. `spare`: float32 [n, heads, padded head_dim].
        """


class CompiledAttention:
    """flash.py, for at most `rows` queries."""

    def __init__(self, shape: StepShape, rows: int, team: Team, *, exact: bool) -> None:
        self._shape, self._team, self._exact = shape, team, int(exact)
        self._private = private_bytes(shape.head_dim, exact=exact)
        shared = shared_bytes(shape.kv_heads, shape.head_dim, exact=exact)
        self._unpacked = np.empty(shared, dtype=np.uint8)
        self._scratch = np.empty(team.threads * self._private, dtype=np.uint8)
        self._marks = np.empty(shape.heads * rows * 2, dtype=np.float32)

    @property
    def nbytes(self) -> int:
        return self._unpacked.nbytes + self._scratch.nbytes + self._marks.nbytes

    def run(
        self,
        query: Activations,
        cache: KvCache,
        layer: int,
        position: int,
        spare: Floats,
        gate: Floats | None,
        out: Activations,
    ) -> None:
        unpacked, scratch, marks = (held.ctypes.data for held in (self._unpacked, self._scratch, self._marks))
        self._team.run(
            flash,
            query.shape[1],
            position,
            self._exact,
            query.ctypes.data,
            cache.address + layer * cache.layer_bytes,
            self._shape,
            (self._team.barrier_state, unpacked, scratch, self._private, spare.ctypes.data, marks),
            0 if gate is None else gate.ctypes.data,
            out.ctypes.data,
            out.strides[0],
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
        query: Activations,
        cache: KvCache,
        layer: int,
        position: int,
        spare: Floats,
        gate: Floats | None,
        out: Activations,
    ) -> None:
        import torch

        from neuron.kernels.attention.prefill import attend

        with torch.inference_mode():
            mixed = attend(tensor(query), cache, layer, position, self._scale)
            tensor(out).copy_(mixed if gate is None else mixed * torch.sigmoid(tensor(gate)))


def spare_columns(shape: StepShape) -> int:
    """Of one row of `spare`."""
    return shape.heads * padded(shape.head_dim)
