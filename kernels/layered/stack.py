"""Stack: one rank's layers as a function of the residual stream. Owns no sequence and no weights beyond its parts."""

from collections.abc import Sequence

import torch

from neuron.kernels.engine import Collectives
from neuron.kernels.formats.model_config import ModelConfig
from neuron.kernels.layered.delta import Delta
from neuron.kernels.layered.ops import TorchOps
from neuron.kernels.layered.sequence import LayeredSequence
from neuron.kernels.layered.span import Span
from neuron.kernels.layered.weights import A_B, GATE_UP, GATED_QUERY, QKV_Z, LayeredWeights, LayerParts

Spliced = Sequence[tuple[int, torch.Tensor]]
"""(offset among the tokens, rows float32 [k, hidden]): embeddings that stand where the tokens' own would."""


class Stack:
    """`config` is the rank's own. Every rank runs the same calls; sums over ranks are float32."""

    def __init__(
        self,
        config: ModelConfig,
        weights: LayeredWeights,
        ops: TorchOps,
        delta: Delta | None,
        group: Collectives | None,
        head_width: int,
    ) -> None:
        self._config, self._weights, self._ops = config, weights, ops
        self._delta, self._group, self._head_width = delta, group, head_width
        self._scale = config.head_dim**-0.5

    def begin(self) -> None:
        """Before a step that may be replayed, and not run."""
        if self._group is not None:
            self._group.begin()

    def run(self, tokens: torch.Tensor, span: Span, sequence: LayeredSequence, spliced: Spliced = ()) -> torch.Tensor:
        """tokens int64 [n] on the device -> the residual stream float32 [n, hidden] after all layers.

        `sequence` has room for them; its rows and state are written, its length is not moved.
        """
        x = self._weights.embedding.lookup(tokens)
        for offset, rows in spliced:
            x[offset : offset + len(rows)] = rows
        full = linear = 0
        more: torch.Tensor | None = None
        for layer in self._weights.layers:
            normed = self._ops.add_norm(x, more, layer.vectors["attn_norm"])
            if "linear_qkv" in layer.linears:
                more = self._delta_net(layer, linear, normed, span, sequence)
                linear += 1
            else:
                more = self._attention(layer, full, normed, span, sequence)
                full += 1
            more = self._mlp(layer, self._ops.add_norm(x, more, layer.vectors["ffn_norm"]))
        return x if more is None else x.add_(more)

    def head(self, x: torch.Tensor) -> torch.Tensor | None:
        """Logits float32 [n, at least the vocabulary] of x [n, hidden]; None on ranks but the first."""
        normed = self._ops.add_norm(x, None, self._weights.norm)
        logits = self._weights.head.forward_wide(normed)
        if self._group is None:
            return logits
        part = logits.new_zeros(len(x), self._head_width)
        part[:, : logits.shape[1]] = logits
        return self._group.gather_columns(part)

    def _attention(
        self, layer: LayerParts, number: int, normed: torch.Tensor, span: Span, sequence: LayeredSequence
    ) -> torch.Tensor:
        config, ops = self._config, self._ops
        q, k, v, *gate = layer.project(GATED_QUERY, normed)
        q, k, v = (
            _biased(x, layer.vectors.get(f"{role}_bias")).view(span.n, -1, config.head_dim)
            for role, x in (("q", q), ("k", k), ("v", v))
        )
        rows, vectors = sequence.rows.rows[number], layer.vectors
        norms = (vectors["q_norm"], vectors["k_norm"]) if "q_norm" in vectors else None
        query = ops.rope_and_write(q, k, v, norms, rows, span)
        gates = [_biased(x, vectors.get("q_gate_bias")).to(x.dtype) for x in gate]
        mixed = ops.attend(query, rows, span, self._scale, gates[0] if gates else None)
        return self._summed(layer, "o", mixed)

    def _delta_net(
        self, layer: LayerParts, number: int, normed: torch.Tensor, span: Span, sequence: LayeredSequence
    ) -> torch.Tensor:
        assert self._delta is not None
        assert sequence.state is not None
        mixed, z = layer.project(QKV_Z, normed)
        a, b = layer.project(A_B, normed)
        return self._summed(layer, "linear_out", self._delta.run(layer, number, mixed, z, a, b, sequence.state, span))

    def _mlp(self, layer: LayerParts, normed: torch.Tensor) -> torch.Tensor:
        gate, up = (
            _biased(x, layer.vectors.get(f"{role}_bias"))
            for role, x in zip(GATE_UP, layer.project(GATE_UP, normed), strict=True)
        )
        return self._summed(layer, "down", self._ops.silu_product(gate, up))

    def _summed(self, layer: LayerParts, role: str, x: torch.Tensor) -> torch.Tensor:
        """The row-parallel product of every rank's part of the columns, summed in float32, and the bias once."""
        product = layer.linears[role].forward_wide(x)
        if self._group is not None:
            product = product.contiguous()
            self._group.all_reduce(product)
        return _biased(product, layer.vectors.get(f"{role}_bias"))


def _biased(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x if bias is None else x.float() + bias
