"""LinearPrefill: many tokens of one sequence through a linear layer, between its matrix products."""
# mypy: allow-untyped-decorators

from typing import Any

import numpy as np
import torch

from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.formats.model_config import LinearAttentionConfig
from neuron.kernels.gdn.chunk.cpu import CHUNK, chunked
from neuron.kernels.gdn.conv_full.cpu import convolve_row, recall, remember
from neuron.kernels.gdn.decode.cpu import gated_norm, normalise
from neuron.kernels.gdn.gating.cpu import gating, stored_head
from neuron.kernels.gdn.recurrent.cpu import recurrent
from neuron.kernels.gdn.state import RecurrentState
from neuron.kernels.jit import compiled
from neuron.kernels.quant.products import expand_row_f32, narrow_row
from neuron.kernels.quant.vector import narrow_f32
from neuron.kernels.threads import Team, barrier
from neuron.kernels.weights.matrix import Floats

_BFLOAT16 = int(GgmlType.BF16)


class LinearPrefill:
    """Buffers for `rows` tokens. Below one chunk the recurrence runs, from it on the chunked form."""

    def __init__(self, linear: LinearAttentionConfig, rows: int, epsilon: float, team: Team, *, exact: bool) -> None:
        self._linear, self._epsilon, self._team = linear, epsilon, team
        self._kind = int(GgmlType.F32 if exact else GgmlType.BF16)
        self._rows = rows
        keys, heads = linear.key_heads, linear.value_heads
        self._channels = 2 * keys * linear.key_dim + heads * linear.value_dim
        self._q, self._k = (torch.empty(keys * rows * linear.key_dim) for _ in range(2))
        self._v, self._o = (torch.empty(heads * rows * linear.value_dim) for _ in range(2))
        self._g, self._beta = (torch.empty(heads * rows) for _ in range(2))
        dtype = torch.float32 if exact else torch.bfloat16
        self._out = torch.empty(rows * heads * linear.value_dim, dtype=dtype)
        private = (linear.conv_kernel + 1) * self._channels
        self._scratch = torch.empty(team.threads * private)

    @property
    def nbytes(self) -> int:
        held = (self._q, self._k, self._v, self._o, self._g, self._beta, self._out, self._scratch)
        return sum(tensor.numel() * tensor.element_size() for tensor in held)

    def run(
        self,
        mixed: torch.Tensor,
        z: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        vectors: dict[str, Floats],
        state: RecurrentState,
        layer: int,
        position: int,
    ) -> torch.Tensor:
        """Output [n, Hv V] in the products' type; `state` of linear layer `layer` moves from `position` on by n.

        mixed [n, channels] and z [n, Hv V] in the products' type; a, b float32 [n, Hv].
        """
        linear, team, n = self._linear, self._team, len(mixed)
        keys, heads = linear.key_heads, linear.value_heads
        shape = (keys, heads, linear.key_dim, linear.value_dim, linear.conv_kernel, int(linear.tiled_value_heads))
        q, k, v, o = (tensor.data_ptr() for tensor in (self._q, self._k, self._v, self._o))
        g, beta, scratch = self._g.data_ptr(), self._beta.data_ptr(), self._scratch.data_ptr()
        ring, weight = state.ring(layer).ctypes.data, vectors["linear_conv"].ctypes.data
        team.run(
            split, team.barrier_state, n, mixed.data_ptr(), self._kind, ring, weight, position, shape, scratch, q, k, v
        )
        decay, bias = (vectors[role].ctypes.data for role in ("linear_decay", "linear_dt_bias"))
        team.run(gating, n, heads, keys, shape[5], a.data_ptr(), b.data_ptr(), decay, bias, n, g, beta)
        self._rule(n, state.recurrent(layer))
        norm = vectors["linear_norm"].ctypes.data
        out = self._out[: n * heads * linear.value_dim].view(n, -1)
        team.run(join, n, o, z.data_ptr(), self._kind, norm, self._epsilon, shape, scratch, out.data_ptr())
        return out

    def _rule(self, n: int, states: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        linear = self._linear
        keys, heads = linear.key_heads, linear.value_heads
        whole = n // CHUNK * CHUNK
        if whole:
            q, k = (x[: keys * n * linear.key_dim].view(keys, n, -1)[:, :whole] for x in (self._q, self._k))
            v, o = (x[: heads * n * linear.value_dim].view(heads, n, -1)[:, :whole] for x in (self._v, self._o))
            g, beta = (x[: heads * n].view(heads, n)[:, :whole] for x in (self._g, self._beta))
            chunked(q, k, v, g, beta, torch.from_numpy(states), o)
        if whole < n:
            self._team.run(
                recurrent,
                heads,
                heads // keys,
                whole,
                n,
                n,
                self._q.data_ptr(),
                self._k.data_ptr(),
                self._v.data_ptr(),
                self._g.data_ptr(),
                self._beta.data_ptr(),
                states.ctypes.data,
                linear.key_dim,
                linear.value_dim,
                self._o.data_ptr(),
            )


@compiled
def split(thread, threads, state, n, x, kind, ring, weight, position, shape, scratch, q, k, v):  # type: ignore[no-untyped-def]
    """Convolution, SiLU and norms of x [n, channels]: q, k [Hk, n, K], v [Hv, n, V] in grouped order, float32."""
    keys, heads, key_width, width, kernel, tiled = shape
    channels, ratio = 2 * keys * key_width + heads * width, heads // keys
    step = channels * (2 if kind == _BFLOAT16 else 4)
    mine = scratch + thread * (kernel + 1) * channels * 4
    row = mine + kernel * channels * 4
    first, last = n * thread // threads, n * (thread + 1) // threads
    recall(first, x, kind, step, ring, position, kernel, channels, mine)
    for t in range(first, last):
        convolve_row(t, x, kind, step, weight, position, kernel, channels, mine, row)
        for head in range(keys):
            query = row + head * key_width * 4
            key = query + keys * key_width * 4
            normalise(query, key_width, key_width**-0.5)
            normalise(key, key_width, 1.0)
            place = (head * n + t) * key_width * 4
            narrow_f32(query, q + place, key_width)
            narrow_f32(key, k + place, key_width)
        for head in range(heads):
            source = row + (2 * keys * key_width + stored_head(head, ratio, keys, tiled) * width) * 4
            narrow_f32(source, v + (head * n + t) * width * 4, width)
    barrier(state, threads)
    if thread == 0:
        remember(n, x, kind, step, ring, position, kernel, channels)


@compiled
def join(thread, threads, n, o, z, kind, norm, epsilon, shape, scratch, out):  # type: ignore[no-untyped-def]
    """Gated norm of o [Hv, n, V] (grouped order) with z [n, Hv V] to out [n, Hv V] (the files' order)."""
    keys, heads, _key_width, width, kernel, tiled = shape
    channels, ratio = 2 * keys * _key_width + heads * width, heads // keys
    gate = scratch + thread * (kernel + 1) * channels * 4
    size = 2 if kind == _BFLOAT16 else 4
    for t in range(n * thread // threads, n * (thread + 1) // threads):
        for head in range(heads):
            place = (t * heads + stored_head(head, ratio, keys, tiled)) * width * size
            expand_row_f32(kind, z + place, gate, width)
            gated_norm(o + (head * n + t) * width * 4, gate, norm, width, epsilon, gate)
            narrow_row(kind, gate, out + place, width)
