"""TorchOps: what a layer does between its products, in torch on any device. A device's own kernels override parts."""

import torch
from torch.nn import functional

from neuron.kernels.attention.prefill import attend_rows
from neuron.kernels.layered.span import Span


class TorchOps:
    """`dtype`: of products and queries; `activations`: of what enters products. x is the float32 residual.

    Queries of up to `few` tokens are float32.
    """

    def __init__(
        self, dtype: torch.dtype, activations: torch.dtype, epsilon: float, adjacent: bool, few: int = 0
    ) -> None:
        self.dtype, self.activations, self._few = dtype, activations, few
        self.epsilon, self.adjacent = epsilon, adjacent

    def add_norm(self, x: torch.Tensor, more: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor:
        """x float32 [n, hidden] += more (if any), in place; RMSNorm of it, in the activations' type."""
        if more is not None:
            x += more
        return self._norm(x, weight).to(self.activations)

    def rope_and_write(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        norms: tuple[torch.Tensor, torch.Tensor] | None,
        rows: torch.Tensor,
        span: Span,
    ) -> torch.Tensor:
        """Norm (if any) and rotation of q [n, heads, head_dim] and k [n, kv heads, head_dim]; k and v are written to
        rows [2, kv heads, positions, head_dim]. Returns the query."""
        wide = [tensor.float() for tensor in (q, k)]
        if norms is not None:
            wide = [self._norm(tensor, norm) for tensor, norm in zip(wide, norms, strict=True)]
        query, key = (rotated(tensor, span.rope, self.adjacent) for tensor in wide)
        for which, new in enumerate((key.to(rows.dtype), v.to(rows.dtype))):
            if span.replayed:
                rows[which].index_copy_(1, span.index, new.transpose(0, 1))
            else:
                rows[which, :, span.start : span.start + span.n] = new.transpose(0, 1)
        return query if span.n <= self._few else query.to(self.dtype)

    def attend(
        self, query: torch.Tensor, rows: torch.Tensor, span: Span, scale: float, gate: torch.Tensor | None
    ) -> torch.Tensor:
        """Causal attention of query [n, heads, head_dim] over rows that hold these tokens too -> [n, heads * head_dim].

        With a gate of that shape the result is times its sigmoid.
        """
        heads = query.transpose(0, 1)
        if span.replayed:
            mixed = attend_all(heads, rows[0], rows[1], span.index, scale)
        else:
            keys, values = (rows[which, :, : span.start + span.n].to(query.dtype) for which in (0, 1))
            mixed = attend_rows(heads, keys, values, span.start, scale)
        return mixed if gate is None else mixed * torch.sigmoid(gate.float())

    def silu_product(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up, in the activations' type."""
        return (functional.silu(gate.float()) * up).to(self.activations)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self.epsilon)


def rotated(x: torch.Tensor, rope: torch.Tensor, adjacent: bool) -> torch.Tensor:
    """The first rotary_dim numbers of x [n, heads, head_dim] turned by rope [n, 2, rotary_dim / 2]; the rest as is."""
    half = rope.shape[-1]
    cosine, sine = rope[:, None, 0], rope[:, None, 1]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    if adjacent:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned[..., :half], turned[..., half:]
    a, b = first * cosine - second * sine, second * cosine + first * sine
    whole = torch.stack([a, b], -1).flatten(-2) if adjacent else torch.cat([a, b], -1)
    return torch.cat([whole, rest], -1) if rest.shape[-1] else whole


def attend_all(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, index: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attention over every row of keys and values [kv heads, positions, head_dim], those after `index` masked out:
    nothing depends on a position that the host knows. query [heads, n, head_dim] -> [n, heads * head_dim]."""
    heads, n, dim = query.shape
    kv_heads, positions, _ = keys.shape
    shared = (kv_heads, heads // kv_heads, positions, dim)
    seen = torch.arange(positions, device=query.device)[None, :] <= index[:, None]
    mixed = functional.scaled_dot_product_attention(
        query.reshape(kv_heads, heads // kv_heads, n, dim),
        keys[:, None].expand(shared),
        values[:, None].expand(shared),
        attn_mask=seen,
        scale=scale,
    )
    return mixed.reshape(heads, n, dim).transpose(0, 1).reshape(n, heads * dim)
