"""The fused operations of a decode step on torch tensors of the GPU, on torch's current stream.

Nothing is allocated here, and positions are read on the device, so that a CUDA graph can hold every call once it has
run before. Activations are float32 or bfloat16 and contiguous, norms and tables float32, sums always float32. In the
simulator the tensors are on the CPU.
"""

from functools import cache
from typing import Any

import numpy as np
import torch

from neuron.kernels.cuda import kernel, launch
from neuron.kernels.fused.attend import cuda as attending
from neuron.kernels.fused.gate import cuda as gating
from neuron.kernels.fused.rms_norm import cuda as norming
from neuron.kernels.fused.rope import cuda as roping

#: Blocks of threads that one launch of attention aims at: enough for a large card.
_BLOCKS = 256


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float, out: torch.Tensor) -> None:
    """out [n, width] = RMSNorm of float32 x [n, width] times weight float32 [width]."""
    compiled = _norming(False, False, _narrow(out))
    launch(compiled, (x.shape[0],), norming.THREADS, (x, x, weight, np.float32(epsilon), out))


def add_rms_norm(x: torch.Tensor, more: torch.Tensor, weight: torch.Tensor, epsilon: float, out: torch.Tensor) -> None:
    """x float32 [n, width] += more [n, width], then `rms_norm` of it."""
    compiled = _norming(True, _narrow(more), _narrow(out))
    launch(compiled, (x.shape[0],), norming.THREADS, (x, more, weight, np.float32(epsilon), out))


def rope_and_write(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    norms: tuple[torch.Tensor, torch.Tensor] | None,
    epsilon: float,
    table: torch.Tensor,
    adjacent: bool,
    index: torch.Tensor,
    query: torch.Tensor,
    rows: torch.Tensor,
) -> None:
    """Norm and rotation of q and k, which with v are written to `rows` at the positions `index`; q goes to `query`.

    q, query [n, heads, dim]; k, v [n, kv heads, dim], all three of one type; norms float32 [dim] of q and k; table
    float32 [n, 2, rotary / 2], cosines and sines; index int64 [n]; rows [2, kv heads, positions, dim].
    """
    n, heads, dim = q.shape
    q_norm, k_norm = (table.view(-1), table.view(-1)) if norms is None else norms
    compiled = _roping(dim, norms is not None, adjacent, _narrow(q), _narrow(query), _narrow(rows))
    arguments = (q, k, v, q_norm, k_norm, np.float32(epsilon), table, index, query, rows)
    launch(compiled, (heads + 2 * k.shape[1], n), roping.threads_of(dim), arguments)


class Attention:
    """Attention of few tokens over rows that hold them already. `parts` is its scratch memory."""

    def __init__(self, heads: int, kv_heads: int, dim: int, tokens: int, positions: int, device: torch.device) -> None:
        """For up to `tokens` tokens at once. `positions`: how many to expect; more are as right, but slower.

        Raises ValueError for widths that are not `attendable`.
        """
        plan = attending.plan(dim, heads // kv_heads)
        if plan is None:
            raise ValueError(f"no block of threads fits {heads}/{kv_heads} heads of {dim}")
        self._plan, self._heads, self._kv_heads = plan, heads, kv_heads
        self._splits = max(1, min(_BLOCKS // (kv_heads * tokens), -(-positions // plan.tile)))
        self.parts = torch.empty(tokens, heads, self._splits * plan.subsets, dim + 2, device=device)

    def run(
        self,
        query: torch.Tensor,
        rows: torch.Tensor,
        index: torch.Tensor,
        scale: float,
        gate: torch.Tensor | None,
        out: torch.Tensor,
    ) -> None:
        """out [n, heads * dim] of query [n, heads, dim] over rows [2, kv heads, positions, dim].

        Token t sees positions 0..index[t], int64 [n]. With a gate [n, heads * dim] out is times its sigmoid.
        """
        n, dim = query.shape[0], self._plan.dim
        parts = self.parts[:n]
        pairs = rows.view(torch.int32) if _narrow(rows) else rows
        grid = (self._splits, self._kv_heads, n)
        compiled = _attending(self._plan, _narrow(query), _narrow(rows))
        launch(compiled, grid, self._plan.threads, (query, pairs, index, np.float32(scale), parts))
        joined = _combining(dim, gate is not None, gate is not None and _narrow(gate), _narrow(out))
        launch(joined, (self._heads, n), roping.threads_of(dim), (parts, out if gate is None else gate, out))


def attendable(heads: int, kv_heads: int, dim: int) -> bool:
    """Whether `Attention` takes these widths."""
    return heads % kv_heads == 0 and attending.plan(dim, heads // kv_heads) is not None


def silu_product(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor) -> None:
    """out = silu(gate) * up, all of one shape."""
    _product(True, gate, up, out)


def sigmoid_product(gate: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
    """out = sigmoid(gate) * x, all of one shape."""
    _product(False, gate, x, out)


def _product(silu: bool, gate: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
    compiled = _gating(silu, _narrow(gate), _narrow(x), _narrow(out))
    blocks = -(-out.numel() // gating.THREADS)
    launch(compiled, (blocks,), gating.THREADS, (gate.view(-1), x.view(-1), out.view(-1)))


def _narrow(tensor: torch.Tensor) -> bool:
    """bfloat16, not float32. Raises ValueError for what kernels do not take."""
    if tensor.dtype not in (torch.float32, torch.bfloat16) or not tensor.is_contiguous():
        raise ValueError(f"{tensor.dtype} {tuple(tensor.shape)} is not contiguous float32 or bfloat16")
    return tensor.dtype is torch.bfloat16


@cache
def _norming(added: bool, bfloat16_added: bool, bfloat16_out: bool) -> Any:
    return kernel(norming.make(added=added, bfloat16_added=bfloat16_added, bfloat16_out=bfloat16_out))


@cache
def _roping(dim: int, normed: bool, adjacent: bool, given: bool, query: bool, rows: bool) -> Any:
    return kernel(
        roping.make(dim, normed=normed, adjacent=adjacent, bfloat16_in=given, bfloat16_query=query, bfloat16_rows=rows)
    )


@cache
def _attending(plan: attending.Plan, query: bool, rows: bool) -> Any:
    return kernel(attending.make(plan, bfloat16_query=query, bfloat16_rows=rows))


@cache
def _combining(dim: int, gated: bool, gate: bool, out: bool) -> Any:
    return kernel(attending.make_combine(dim, gated=gated, bfloat16_gate=gate, bfloat16_out=out))


@cache
def _gating(silu: bool, gate: bool, given: bool, out: bool) -> Any:
    return kernel(gating.make(silu=silu, bfloat16_gate=gate, bfloat16_in=given, bfloat16_out=out))
