"""Prefill: many tokens of one sequence through the model with the library's matrix products, layer by layer."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from neuron.kernels.attention.cache import KvCache
from neuron.kernels.attention.prefill import attend
from neuron.kernels.decoder import elementwise, plan
from neuron.kernels.decoder.buffers import PREFILL_ROWS, Workspace
from neuron.kernels.decoder.sequence import SequenceCache
from neuron.kernels.decoder.weights import DecoderWeights, LayerWeights
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.formats.model_config import ModelConfig
from neuron.kernels.gdn.prefill import LinearPrefill
from neuron.kernels.quant.products import expand_matrix
from neuron.kernels.threads import Team
from neuron.kernels.weights.matrix import Floats, Matrix
from neuron.kernels.weights.reader import expanded


class Prefill:
    """Products run in bfloat16 (float32 when `exact`); the residual stream, norms and softmax stay float32."""

    def __init__(
        self, config: ModelConfig, weights: DecoderWeights, workspace: Workspace, team: Team, *, exact: bool
    ) -> None:
        self._config, self._weights, self._workspace, self._team = config, weights, workspace, team
        self.dtype = torch.float32 if exact else torch.bfloat16
        self._kind = int(GgmlType.F32 if exact else GgmlType.BF16)
        query = config.num_heads * config.head_dim
        matrices = [matrix for layer in weights.layers for matrix in layer.matrices.values()]
        largest = max(matrix.rows * matrix.cols for matrix in matrices)
        widest = max(config.hidden_size, query)
        self._linear: LinearPrefill | None = None
        if config.linear is not None:
            self._linear = LinearPrefill(config.linear, PREFILL_ROWS, config.rms_norm_eps, team, exact=exact)
        self._expanded = torch.empty(largest, dtype=self.dtype)
        self._normed = torch.empty(PREFILL_ROWS * widest, dtype=self.dtype)
        self._query = torch.empty(PREFILL_ROWS * query, dtype=self.dtype)
        width = max(config.hidden_size, 2 * config.intermediate_size, config.head_dim)
        self._scratch = torch.empty(team.threads * width, dtype=torch.float32)

    @property
    def nbytes(self) -> int:
        held = (self._expanded, self._normed, self._query, self._scratch)
        linear = 0 if self._linear is None else self._linear.nbytes
        return linear + sum(tensor.numel() * tensor.element_size() for tensor in held)

    def run(
        self,
        tokens: npt.NDArray[np.int32],
        cache: SequenceCache,
        spliced: Sequence[tuple[int, Floats]] = (),
    ) -> None:
        """tokens int32 [n <= PREFILL_ROWS]; rope table and positions are in the workspace. Leaves x in it.

        `spliced`: (offset, rows [k, hidden]) that stand where the tokens' own embeddings would.
        """
        space, team = self._workspace, self._team
        n = len(tokens)
        team.run(elementwise.embed, n, tokens, space.table, space.shape, space.buffers.x)
        if spliced:
            x = space.arena.array("x").view(np.float32).reshape(PREFILL_ROWS, -1)
            for offset, rows in spliced:
                x[offset : offset + len(rows)] = rows
        for index, layer in enumerate(self._weights.layers):
            if "linear_qkv" in layer.matrices:
                self._delta_net(index, layer, n, cache)
            else:
                self._attention(index, layer, n, cache.kv)
            self._mlp(layer, n)

    def _delta_net(self, index: int, layer: LayerWeights, n: int, cache: SequenceCache) -> None:
        assert self._linear is not None
        assert cache.state is not None
        normed = self._norm(layer.vectors["attn_norm"], n)
        mixed, z = (self._product(normed, layer.matrices[role]) for role in ("linear_qkv", "linear_z"))
        # Rounding the gates to bfloat16 would let the state drift with length.
        wide = normed.float()
        a, b = (self._product_f32(wide, layer.matrices[role]) for role in ("linear_a", "linear_b"))
        number = int(self._workspace.table[index, plan.STATE_LAYER])
        out = self._linear.run(mixed, z, a, b, layer.vectors, cache.state, number, cache.length)
        self._residual(out, layer.matrices["linear_out"], None)

    def _attention(self, index: int, layer: LayerWeights, n: int, cache: KvCache) -> None:
        space, config = self._workspace, self._config
        normed = self._norm(layer.vectors["attn_norm"], n)
        q, k, v = (self._product(normed, layer.matrices[role]) for role in ("q", "k", "v"))
        query = self._query[: n * config.num_heads * config.head_dim]
        biases = tuple(_address(layer.vectors.get(role)) for role in ("q_bias", "k_bias", "v_bias"))
        self._team.run(
            elementwise.split_heads,
            n,
            q.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            self._kind,
            biases,
            space.table[index],
            space.buffers.rope,
            space.buffers.positions,
            cache.address,
            space.shape,
            self._scratch.data_ptr(),
            query.data_ptr(),
        )
        heads = query.view(config.num_heads, n, config.head_dim)
        mixed = attend(heads, cache, int(space.table[index, plan.CACHE_LAYER]), cache.length, space.shape.scale)
        if "q_gate" in layer.matrices:
            mixed = mixed * torch.sigmoid(self._product(normed, layer.matrices["q_gate"]))
        self._residual(mixed, layer.matrices["o"], layer.vectors.get("o_bias"))

    def _mlp(self, layer: LayerWeights, n: int) -> None:
        normed = self._norm(layer.vectors["ffn_norm"], n)
        gate = self._product(normed, layer.matrices["gate"])
        up = self._product(normed, layer.matrices["up"])
        self._team.run(
            elementwise.silu,
            n,
            gate.data_ptr(),
            up.data_ptr(),
            self._kind,
            _address(layer.vectors.get("gate_bias")),
            _address(layer.vectors.get("up_bias")),
            self._config.intermediate_size,
            self._scratch.data_ptr(),
            gate.data_ptr(),
        )
        self._residual(gate, layer.matrices["down"], layer.vectors.get("down_bias"))

    def _norm(self, weight: Floats, n: int) -> torch.Tensor:
        hidden = self._config.hidden_size
        out = self._normed[: n * hidden].view(n, hidden)
        self._team.run(
            elementwise.norm,
            n,
            self._workspace.buffers.x,
            _address(weight),
            hidden,
            self._config.rms_norm_eps,
            self._scratch.data_ptr(),
            self._kind,
            out.data_ptr(),
        )
        return out

    def _product(self, x: torch.Tensor, matrix: Matrix) -> torch.Tensor:
        """x [n, cols] . matrix^T; the matrix is expanded into the workspace unless it is stored as needed."""
        return torch.nn.functional.linear(x, self._dense(matrix))

    def _dense(self, matrix: Matrix) -> torch.Tensor:
        shape = (matrix.rows, matrix.cols)
        if int(matrix.kind) == self._kind:
            return torch.from_numpy(matrix.data.reshape(-1)).view(self.dtype).view(shape)
        out = self._expanded[: matrix.rows * matrix.cols].view(shape)
        self._team.run(
            expand_matrix,
            int(matrix.kind),
            matrix.address,
            matrix.row_bytes,
            matrix.rows,
            matrix.cols,
            out.data_ptr(),
            matrix.cols * out.element_size(),
            int(self.dtype is torch.bfloat16),
        )
        return out

    def _product_f32(self, x: torch.Tensor, matrix: Matrix) -> torch.Tensor:
        """float32 x [n, cols] . matrix^T of a small matrix, in float32."""
        return torch.nn.functional.linear(x, torch.from_numpy(expanded(matrix, self._team)))

    def _residual(self, x: torch.Tensor, matrix: Matrix, bias: Floats | None) -> None:
        product = self._product(x, matrix)
        self._team.run(
            elementwise.add,
            x.shape[0],
            product.data_ptr(),
            self._kind,
            _address(bias),
            self._config.hidden_size,
            self._scratch.data_ptr(),
            self._workspace.buffers.x,
        )


def _address(vector: Floats | None) -> int:
    return 0 if vector is None else vector.ctypes.data
