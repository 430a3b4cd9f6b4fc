"""TorchOps: what a layer does between its products, in torch on any device. A device's own kernels override parts."""

import torch
from torch.nn import functional

from neuron.kernels.attention.prefill import attend_rows
from neuron.kernels.layered.span import Span


class TorchOps:
    """Activations are float32 unless they say otherwise; `dtype` is the products' type."""

    def __init__(self, dtype: torch.dtype, epsilon: float, adjacent: bool) -> None:
        self.dtype, self.epsilon, self.adjacent = dtype, epsilon, adjacent

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMSNorm over the last axis of float32 x, in float32."""
        return functional.rms_norm(x, (x.shape[-1],), weight, self.epsilon)

    def head_norm_rope(self, x: torch.Tensor, norm: torch.Tensor | None, rope: torch.Tensor) -> torch.Tensor:
        """Norm (if any) and rotation of q or k: x [n, heads, head_dim] of any type -> the products' type."""
        wide = x.float()
        if norm is not None:
            wide = self.norm(wide, norm)
        return rotated(wide, rope, self.adjacent).to(self.dtype)

    def write_rows(self, rows: torch.Tensor, key: torch.Tensor, value: torch.Tensor, span: Span) -> None:
        """key, value [n, kv heads, head_dim] in the products' type to rows [2, kv heads, positions, head_dim]."""
        for which, new in enumerate((key, value)):
            if span.replayed:
                rows[which].index_copy_(1, span.index, new.transpose(0, 1))
            else:
                rows[which, :, span.start : span.start + span.n] = new.transpose(0, 1)

    def attend(self, query: torch.Tensor, rows: torch.Tensor, span: Span, scale: float) -> torch.Tensor:
        """Causal attention of query [n, heads, head_dim] over rows that hold these tokens too -> [n, heads * dim]."""
        heads = query.transpose(0, 1)
        if span.replayed:
            return attend_all(heads, rows[0], rows[1], span.index, scale)
        end = span.start + span.n
        return attend_rows(heads, rows[0, :, :end], rows[1, :, :end], span.start, scale)

    def gated(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """x * sigmoid(gate)."""
        return x * torch.sigmoid(gate.float())

    def silu_product(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up, in the products' type."""
        return (functional.silu(gate.float()) * up).to(self.dtype)


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
