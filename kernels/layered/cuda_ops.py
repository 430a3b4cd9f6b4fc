"""CudaOps: TorchOps with the fused kernels of a GPU. Imported only where there is one (or its simulator)."""

import torch

from neuron.kernels.formats.model_config import ModelConfig
from neuron.kernels.fused import launch
from neuron.kernels.layered.ops import TorchOps
from neuron.kernels.layered.span import Span


class CudaOps(TorchOps):
    """`config` is the rank's own; `context` bounds the positions. Single tokens meet the cache in kernels that read
    their position on the device; more tokens, and heads that no block of threads fits, in torch's attention."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, context: int, device: torch.device) -> None:
        super().__init__(dtype, dtype, config.rms_norm_eps, config.rope.adjacent_pairs)
        heads = (config.num_heads, config.num_kv_heads, config.head_dim)
        self._attention = launch.Attention(*heads, 1, context, device) if launch.attendable(*heads) else None

    def add_norm(self, x: torch.Tensor, more: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x, dtype=self.activations)
        if more is None:
            launch.rms_norm(x, weight, self.epsilon, out)
        else:
            launch.add_rms_norm(x, more.contiguous(), weight, self.epsilon, out)
        return out

    def rope_and_write(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        norms: tuple[torch.Tensor, torch.Tensor] | None,
        rows: torch.Tensor,
        span: Span,
    ) -> torch.Tensor:
        if not q.dtype == k.dtype == v.dtype:
            q, k, v = q.float(), k.float(), v.float()
        query = torch.empty_like(q, dtype=self.dtype)
        launch.rope_and_write(q, k, v, norms, self.epsilon, span.rope, self.adjacent, span.index, query, rows)
        return query

    def attend(
        self, query: torch.Tensor, rows: torch.Tensor, span: Span, scale: float, gate: torch.Tensor | None
    ) -> torch.Tensor:
        if span.n > 1 or self._attention is None:
            return super().attend(query, rows, span, scale, gate)
        out = torch.empty_like(query, dtype=self.activations).view(1, -1)
        self._attention.run(query, rows, span.index, scale, gate, out)
        return out

    def silu_product(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        if gate.dtype != up.dtype:
            gate, up = gate.float(), up.float()
        out = torch.empty_like(gate, dtype=self.activations)
        launch.silu_product(gate, up, out)
        return out
