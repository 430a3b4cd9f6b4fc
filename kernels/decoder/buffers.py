"""Workspace: every buffer that a forward call needs, allocated once per model; the shape and table of the step."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from neuron.kernels.attention.heads import HEADS
from neuron.kernels.attention.step import TILE
from neuron.kernels.decoder import plan
from neuron.kernels.decoder.plan import StepBuffers, StepShape
from neuron.kernels.decoder.weights import DecoderWeights
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.formats.model_config import LayerKind, ModelConfig
from neuron.kernels.gdn.state import state_shape
from neuron.kernels.quant.activations import padded, quants_bytes, scales_bytes
from neuron.kernels.threads import Team
from neuron.kernels.weights.matrix import Bytes, Matrix, aligned_bytes

#: Most rows of one compiled step. Above it, prefill by matrix products takes over.
STEP_ROWS = 16
#: Most rows of one pass of prefill.
PREFILL_ROWS = 512


class Arena:
    """Aligned buffers by name; they live as long as the arena."""

    def __init__(self) -> None:
        self._held: dict[str, Bytes] = {}

    def take(self, name: str, size: int) -> int:
        """`size` zeroed bytes; their address."""
        block = aligned_bytes(max(size, 64))
        block[:] = 0
        self._held[name] = block
        return block.ctypes.data

    def array(self, name: str) -> Bytes:
        return self._held[name]

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self._held.values())


@dataclass(slots=True)
class Workspace:
    arena: Arena
    shape: StepShape
    buffers: StepBuffers
    table: npt.NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        return self.arena.nbytes + self.table.nbytes


def step_shape(config: ModelConfig, kv_kind: GgmlType, context: int, embedding_rows: int) -> StepShape:
    head_bytes = context * config.head_dim * kv_kind.type_size
    linear, state = config.linear, state_shape(config)
    return StepShape(
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        layers=config.num_layers,
        vocab=embedding_rows,
        rotary_dim=config.rope.rotary_dim,
        adjacent=int(config.rope.adjacent_pairs),
        kv_kind=int(kv_kind),
        kv_size=kv_kind.type_size,
        kv_head_bytes=head_bytes,
        kv_layer_bytes=2 * config.num_kv_heads * head_bytes,
        scale=config.head_dim**-0.5,
        epsilon=config.rms_norm_eps,
        linear_key_heads=0 if linear is None else linear.key_heads,
        linear_value_heads=0 if linear is None else linear.value_heads,
        linear_key_dim=0 if linear is None else linear.key_dim,
        linear_value_dim=0 if linear is None else linear.value_dim,
        conv_kernel=1 if linear is None else linear.conv_kernel,
        tiled_value_heads=0 if linear is None else int(linear.tiled_value_heads),
        state_layer_bytes=0 if state is None else state.layer_floats * 4,
        state_ring_bytes=0 if state is None else state.ring_floats * 4,
    )


def build_workspace(config: ModelConfig, weights: DecoderWeights, shape: StepShape, team: Team) -> Workspace:
    """Buffers for STEP_ROWS rows of the step; `x`, `rope` and `positions` also serve PREFILL_ROWS of prefill."""
    arena = Arena()
    rows, threads = STEP_ROWS, team.threads
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    values, heads = shape.linear_value_heads * shape.linear_value_dim, shape.linear_value_heads
    channels = 2 * shape.linear_key_heads * shape.linear_key_dim + values
    private_linear = 8 * (shape.linear_key_dim + shape.linear_value_dim)
    widest = padded(max(config.hidden_size, config.intermediate_size, query, values))
    part = config.num_heads * threads * (config.head_dim + 2) * 4
    buffers = StepBuffers(
        barrier=team.barrier_state,
        x=arena.take("x", PREFILL_ROWS * config.hidden_size * 4),
        query=arena.take("query", rows * query * 4),
        key=arena.take("key", rows * key * 4),
        value=arena.take("value", rows * key * 4),
        gate=arena.take("gate", rows * config.intermediate_size * 4),
        up=arena.take("up", rows * config.intermediate_size * 4),
        product=arena.take("product", rows * config.hidden_size * 4),
        partial=arena.take("partial", rows * part),
        rope=arena.take("rope", PREFILL_ROWS * config.rope.rotary_dim * 4),
        positions=arena.take("positions", PREFILL_ROWS * 8),
        caches=arena.take("caches", PREFILL_ROWS * 8),
        normed=arena.take("normed", threads * rows * widest * 4),
        quants=arena.take("quants", threads * rows * quants_bytes(widest)),
        scales=arena.take("scales", threads * rows * scales_bytes(widest)),
        scores=arena.take("scores", threads * HEADS * TILE * 4),
        private_normed=rows * widest * 4,
        private_quants=rows * quants_bytes(widest),
        private_scales=rows * scales_bytes(widest),
        private_scores=HEADS * TILE * 4,
        normed_step=widest * 4,
        quants_step=quants_bytes(widest),
        scales_step=scales_bytes(widest),
        query_gate=arena.take("query_gate", rows * query * 4 * config.attn_output_gate),
        mixed=arena.take("mixed", rows * channels * 4),
        z=arena.take("z", rows * values * 4),
        linear_out=arena.take("linear_out", rows * values * 4),
        alpha=arena.take("alpha", rows * heads * 4),
        beta=arena.take("beta", rows * heads * 4),
        states=arena.take("states", PREFILL_ROWS * 8),
        linear_scratch=arena.take("linear_scratch", threads * private_linear),
        private_linear=private_linear,
    )
    return Workspace(arena, shape, buffers, _table(config, weights))


def _table(config: ModelConfig, weights: DecoderWeights) -> npt.NDArray[np.int64]:
    table = np.zeros((config.num_layers + 1, plan.WIDTH), dtype=np.int64)
    full = linear = 0
    for index, layer in enumerate(weights.layers):
        row = table[index]
        if config.layer_kinds[index] is LayerKind.FULL:
            row[plan.LAYER_KIND], row[plan.CACHE_LAYER] = plan.FULL, full
            full += 1
        else:
            row[plan.LAYER_KIND], row[plan.STATE_LAYER] = plan.LINEAR, linear
            linear += 1
        for role, column in plan.MATRIX_ROLES.items():
            if role in layer.matrices:
                describe(row, column, layer.matrices[role])
        for role, column in plan.VECTOR_ROLES.items():
            if role in layer.vectors:
                row[column] = layer.vectors[role].ctypes.data
    top = table[config.num_layers]
    describe(top, plan.EMBEDDING, weights.embedding)
    describe(top, plan.HEAD, weights.head)
    top[plan.FINAL_NORM] = weights.norm.ctypes.data
    return table


def describe(row: npt.NDArray[np.int64], column: int, matrix: Matrix) -> None:
    """Write a matrix's four columns."""
    row[column : column + 4] = (int(matrix.kind), matrix.address, matrix.row_bytes, matrix.rows)
