"""Delta: a linear layer between its products, on any device. CompiledDelta: the CPU's own; TorchDelta: tensors only."""

from typing import Protocol

import torch
from torch.nn import functional

from neuron.kernels.formats.model_config import LinearAttentionConfig
from neuron.kernels.gdn.chunk.cpu import CHUNK
from neuron.kernels.gdn.chunk.tensors import chunked
from neuron.kernels.gdn.gating.naive import SOFTPLUS_LINEAR
from neuron.kernels.gdn.prefill import LinearPrefill
from neuron.kernels.gdn.recurrent.naive import L2_EPSILON
from neuron.kernels.layered.span import Span
from neuron.kernels.layered.state import DeviceState
from neuron.kernels.layered.weights import LayerParts


class Delta(Protocol):
    @property
    def nbytes(self) -> int: ...

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
        """Output [n, Hv V]; `state` of linear layer `number` moves on by the span.

        mixed [n, channels]: q, k, v before the convolution; z [n, Hv V]; a, b float32 [n, Hv]; all in the files' order.
        """


class CompiledDelta:
    """The compiled engine's prefill, for one token too."""

    def __init__(self, prefill: LinearPrefill) -> None:
        self._prefill = prefill

    @property
    def nbytes(self) -> int:
        return self._prefill.nbytes

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
        assert state.host is not None
        x, gate, alpha, beta = (tensor.float().contiguous().numpy() for tensor in (mixed, z, a, b))
        vectors, host = layer.host_vectors, state.host
        return torch.from_numpy(self._prefill.run(x, gate, alpha, beta, vectors, host, number, span.start))


class TorchDelta:
    """float32. Below one chunk the recurrence runs, from it on the chunked form."""

    def __init__(self, linear: LinearAttentionConfig, epsilon: float, device: torch.device) -> None:
        self._linear, self._epsilon = linear, epsilon
        ratio = linear.value_heads // linear.key_heads
        grouped = torch.arange(linear.value_heads)
        if linear.tiled_value_heads:
            grouped = grouped % ratio * linear.key_heads + grouped // ratio
        #: Where the files keep value head h of the grouped order, and back.
        self._stored = grouped.to(device)
        self._grouped = torch.argsort(grouped).to(device)
        self._taps = torch.arange(linear.conv_kernel, device=device)

    @property
    def nbytes(self) -> int:
        return 0

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
        linear, n, vectors = self._linear, span.n, layer.vectors
        keys, width = linear.key_heads * linear.key_dim, linear.value_dim
        x = self._convolve(mixed.float(), state.ring(number), vectors["linear_conv"], span)
        q = _normalised(x[:, :keys].view(n, linear.key_heads, -1)) * linear.key_dim**-0.5
        k = _normalised(x[:, keys : 2 * keys].view(n, linear.key_heads, -1))
        v = x[:, 2 * keys :].view(n, linear.value_heads, width)[:, self._stored]
        softplus = functional.softplus(a.float() + vectors["linear_dt_bias"], threshold=SOFTPLUS_LINEAR)
        g = (vectors["linear_decay"] * softplus)[:, self._stored]
        beta = torch.sigmoid(b.float())[:, self._stored]
        out = self._rule(q, k, v, g, beta, state.recurrent(number))[:, self._grouped]
        normed = functional.rms_norm(out, (width,), vectors["linear_norm"], self._epsilon)
        return (normed * functional.silu(z.float().view(n, linear.value_heads, width))).view(n, -1)

    def _convolve(self, x: torch.Tensor, ring: torch.Tensor, weight: torch.Tensor, span: Span) -> torch.Tensor:
        """silu(conv(x)); the last inputs go into the ring, whose rows are found on the device."""
        kernel, n = self._linear.conv_kernel, span.n
        before = (span.index[:1] + 1 + self._taps[:-1]) % kernel
        inputs = torch.cat([ring[before], x])
        taps = weight.view(kernel, -1)
        total = inputs[:n] * taps[0]
        for j in range(1, kernel):
            total += inputs[j : j + n] * taps[j]
        last = min(n, kernel)
        ring.index_copy_(0, span.index[-last:] % kernel, x[-last:])
        return functional.silu(total)

    def _rule(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        state: torch.Tensor,
    ) -> torch.Tensor:
        """[n, Hv, V] of q, k [n, Hk, K], v [n, Hv, V], g, beta [n, Hv]."""
        n = len(q)
        whole = n // CHUNK * CHUNK
        out = torch.empty_like(v)
        if whole:
            first = tuple(tensor[:whole].transpose(0, 1).contiguous() for tensor in (q, k, v, g, beta))
            result = torch.empty_like(first[2])
            chunked(first[0], first[1], first[2], first[3], first[4], state, result)
            out[:whole] = result.transpose(0, 1)
        if whole < n:
            self._recurrent(q[whole:], k[whole:], v[whole:], g[whole:], beta[whole:], state, out[whole:])
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
        """Token by token; `state` [Hv, K, V] in place, `out` like v. q is divided by sqrt(K) already."""
        ratio = v.shape[1] // k.shape[1]
        decay = g.exp()
        for t in range(len(q)):
            key, query = (x[t].repeat_interleave(ratio, 0) for x in (k, q))
            state.mul_(decay[t, :, None, None])
            update = beta[t, :, None] * (v[t] - (key[:, None] @ state)[:, 0])
            state.baddbmm_(key[:, :, None], update[:, None])
            out[t] = (query[:, None] @ state)[:, 0]


def _normalised(x: torch.Tensor) -> torch.Tensor:
    """The epsilon is inside the root."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + L2_EPSILON)
