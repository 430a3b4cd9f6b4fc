"""Prefill: many tokens of one sequence through the model by matrix products, layer by layer."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from neuron.kernels.attention.cache import KvCache
from neuron.kernels.attention.prompt import CompiledAttention, LibraryAttention, PromptAttention, spare_columns
from neuron.kernels.decoder import elementwise, plan
from neuron.kernels.decoder.buffers import PREFILL_ROWS, Workspace
from neuron.kernels.decoder.gemm import multiplies_here
from neuron.kernels.decoder.products import (
    BFLOAT16,
    FLOAT32,
    Activations,
    CompiledProducts,
    LibraryProducts,
    Products,
    activation_type,
    address,
    row_buffer,
    take_rows,
)
from neuron.kernels.decoder.sequence import SequenceCache
from neuron.kernels.decoder.weights import DecoderWeights, LayerWeights
from neuron.kernels.formats.model_config import ModelConfig
from neuron.kernels.gdn.prefill import LinearPrefill
from neuron.kernels.quant.products import expand_matrix
from neuron.kernels.threads import Team
from neuron.kernels.weights.matrix import Floats


class Prefill:
    """Products take bfloat16 (float32 when `exact`); their sums, the residual stream, norms and softmax are float32."""

    def __init__(
        self, config: ModelConfig, weights: DecoderWeights, workspace: Workspace, team: Team, *, exact: bool
    ) -> None:
        self._config, self._weights, self._workspace, self._team = config, weights, workspace, team
        dtype = activation_type(exact=exact)
        self._kind = FLOAT32 if exact else BFLOAT16
        shape, rows = workspace.shape, PREFILL_ROWS
        query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        matrices = [matrix for layer in weights.layers for matrix in layer.matrices.values()]
        widest = max(config.hidden_size, config.intermediate_size, config.head_dim)
        self._products: Products
        self._attend: PromptAttention
        if multiplies_here(exact=exact) and all(matrix.cols % 2 == 0 for matrix in matrices):
            self._products = CompiledProducts(rows, team)
            self._attend = CompiledAttention(shape, rows, team, exact=exact)
        else:
            largest = max(matrix.rows * matrix.cols for matrix in matrices)
            self._products = LibraryProducts(largest, widest, team, exact=exact)
            self._attend = LibraryAttention(shape)
        gated = query if config.attn_output_gate else 0
        columns = spare_columns(shape) + 2 * key + gated
        self._linear: LinearPrefill | None = None
        if config.linear is not None:
            self._linear = LinearPrefill(config.linear, rows, config.rms_norm_eps, team, exact=exact)
            values, heads = config.linear.value_heads * config.linear.value_dim, config.linear.value_heads
            channels = 2 * config.linear.key_heads * config.linear.key_dim + values
            columns = max(columns, channels + values + 2 * heads + config.hidden_size)
        # What a layer's first products make, then the activations of its MLP: never both at once.
        self._sums = np.empty(rows * columns, dtype=np.float32)
        self._normed = row_buffer(rows, config.hidden_size, dtype)
        self._query = np.empty(rows * query, dtype=dtype)
        self._inner = row_buffer(rows, max(query, config.intermediate_size), dtype)
        self._scratch = np.empty(team.threads * widest, dtype=np.float32)

    @property
    def nbytes(self) -> int:
        held = (self._sums, self._normed, self._query, self._inner, self._scratch)
        linear = 0 if self._linear is None else self._linear.nbytes
        return sum(buffer.nbytes for buffer in held) + self._products.nbytes + self._attend.nbytes + linear

    def follow(self, threads: int) -> None:
        """From now on the team runs on so many threads."""
        self._products.follow(threads)

    def run(
        self,
        tokens: npt.NDArray[np.int32],
        cache: SequenceCache,
        wanted: int,
        spliced: Sequence[tuple[int, Floats]] = (),
    ) -> None:
        """tokens int32 [n <= PREFILL_ROWS]; rope table and positions are in the workspace. Leaves x in it.

        Only the last `wanted` rows of x are of use: nobody reads the others after the last layer's cache or state is
        written. `spliced`: (offset, rows [k, hidden]) that stand where the tokens' own embeddings would.
        """
        space, team = self._workspace, self._team
        n = len(tokens)
        team.run(elementwise.embed, n, tokens, space.table, space.shape, space.buffers.x)
        stream = space.arena.array("x").view(np.float32).reshape(PREFILL_ROWS, -1)
        for offset, rows in spliced:
            stream[offset : offset + len(rows)] = rows
        x = stream[:n]
        for index, layer in enumerate(self._weights.layers):
            kept = x if layer is not self._weights.layers[-1] else x[n - wanted :]
            if "linear_qkv" in layer.matrices:
                self._delta_net(index, layer, x, kept, cache)
            else:
                self._attention(index, layer, x, kept, cache.kv)
            if len(kept):
                self._mlp(layer, kept)

    def _delta_net(self, index: int, layer: LayerWeights, x: Floats, kept: Floats, cache: SequenceCache) -> None:
        """The state moves on by all of x; results are added to `kept`, the last rows of x."""
        assert self._linear is not None
        assert cache.state is not None
        normed = self._norm(layer.vectors["attn_norm"], x)
        asking = self._gate_input(normed, layer)
        gates = ((asking, layer, "linear_a"), (asking, layer, "linear_b"))
        mixed, z, a, b = self._project([(normed, layer, "linear_qkv"), (normed, layer, "linear_z"), *gates])
        number = int(self._workspace.table[index, plan.STATE_LAYER])
        out = self._linear.run(mixed, z, a, b, layer.vectors, cache.state, number, cache.length)
        if len(kept):
            self._products.add(out[-len(kept) :], layer.matrices["linear_out"], None, kept)

    def _gate_input(self, normed: Activations, layer: LayerWeights) -> Activations:
        """Rounding weights of the gates to bfloat16 would let the state drift with length."""
        kinds = {int(layer.matrices[role].kind) for role in ("linear_a", "linear_b")}
        if kinds == {self._kind} or self._kind == FLOAT32:
            return normed
        # At the end of the sums, where this layer's do not reach.
        wide = self._sums[-normed.size :].reshape(normed.shape)
        source = (BFLOAT16, normed.ctypes.data, normed.strides[0])
        self._team.run(expand_matrix, *source, *normed.shape, wide.ctypes.data, wide.strides[0], 0)
        return wide

    def _attention(self, index: int, layer: LayerWeights, x: Floats, kept: Floats, cache: KvCache) -> None:
        """Keys and values of all of x go into the cache; results are added to `kept`, the last rows of x."""
        space, config, n = self._workspace, self._config, len(kept)
        heads, dim = config.num_heads, config.head_dim
        normed = self._norm(layer.vectors["attn_norm"], x)
        asking = normed[len(x) - n :]
        wanted = [(asking, layer, "q"), (normed, layer, "k"), (normed, layer, "v")]
        if "q_gate" in layer.matrices:
            wanted.append((asking, layer, "q_gate"))
        q, k, v, *gate = self._project(wanted)
        query = self._query[: n * heads * dim].reshape(heads, n, dim)
        self._team.run(
            elementwise.split_heads,
            len(x),
            n,
            q.ctypes.data,
            k.ctypes.data,
            v.ctypes.data,
            space.table[index],
            space.buffers.rope,
            space.buffers.positions,
            cache.address,
            space.shape,
            self._scratch.ctypes.data,
            self._kind,
            query.ctypes.data,
        )
        number = int(space.table[index, plan.CACHE_LAYER])
        if n:
            out = take_rows(self._inner, n, heads * dim)
            position = cache.length + len(x) - n
            self._attend.run(query, cache, number, position, q, gate[0] if gate else None, out)
            self._products.add(out, layer.matrices["o"], layer.vectors.get("o_bias"), kept)

    def _mlp(self, layer: LayerWeights, x: Floats) -> None:
        normed = self._norm(layer.vectors["ffn_norm"], x)
        inner = take_rows(self._inner, len(x), self._config.intermediate_size)
        biases = (layer.vectors.get("gate_bias"), layer.vectors.get("up_bias"))
        self._products.gated(normed, layer.matrices["gate"], layer.matrices["up"], biases, inner)
        self._products.add(inner, layer.matrices["down"], layer.vectors.get("down_bias"), x)

    def _norm(self, weight: Floats, x: Floats) -> Activations:
        out = take_rows(self._normed, *x.shape)
        self._team.run(
            elementwise.norm,
            len(x),
            x.ctypes.data,
            address(weight),
            self._config.hidden_size,
            self._config.rms_norm_eps,
            self._scratch.ctypes.data,
            self._kind,
            out.ctypes.data,
            out.strides[0],
        )
        return out

    def _project(self, wanted: Sequence[tuple[Activations, LayerWeights, str]]) -> list[Floats]:
        """Products with biases, one behind the other in the sums; the first has room for a padded query."""
        found, at = [], 0
        for x, layer, role in wanted:
            matrix = layer.matrices[role]
            out = self._sums[at : at + len(x) * matrix.rows].reshape(len(x), matrix.rows)
            self._products.store(x, matrix, layer.vectors.get(f"{role}_bias"), out)
            found.append(out)
            at += len(x) * (spare_columns(self._workspace.shape) if role == "q" else matrix.rows)
        return found
