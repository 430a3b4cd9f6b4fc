"""DecoderModel: a resident decoder-only transformer, the DeviceModel of the CPU."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from neuron.kernels.attention.cache import KvCache
from neuron.kernels.attention.rope import Rope
from neuron.kernels.decoder.buffers import PREFILL_ROWS, STEP_ROWS, Workspace
from neuron.kernels.decoder.prefill import Prefill
from neuron.kernels.decoder.sequence import SequenceCache
from neuron.kernels.decoder.step import run_step
from neuron.kernels.decoder.weights import DecoderWeights
from neuron.kernels.engine import ModelMemory
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.formats.model_config import LayerKind, ModelConfig
from neuron.kernels.gdn.state import RecurrentState, state_shape
from neuron.kernels.resident import Logits, ResidentModel, RopePositions, Tokens, within
from neuron.kernels.threads import Team

#: From this length on, one token's attention is split over threads by position as well as by head.
_SPLIT_LENGTH = 64
Spliced = Sequence[tuple[int, npt.NDArray[np.float32]]]
"""(offset among the tokens, rows float32 [k, hidden]): embeddings that stand where the tokens' own would."""


class DecoderModel(ResidentModel[SequenceCache, npt.NDArray[np.float32]]):
    """Implements kernels.engine.DeviceModel. Memory of an emptied cache goes back to the system."""

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        workspace: Workspace,
        prefill: Prefill,
        rope: Rope,
        team: Team,
        context_length: int,
        kv_kind: GgmlType,
        summary: str,
    ) -> None:
        memory = ModelMemory(
            weights=weights.nbytes,
            kv_per_token=config.kv_elements_per_token * kv_kind.type_size,
            state=config.state_bytes,
            workspace=workspace.nbytes + prefill.nbytes,
        )
        super().__init__(weights.embedding.rows, context_length, memory, summary)
        self.config = config
        self._workspace, self._prefill, self._rope, self._team = workspace, prefill, rope, team
        self._weights: DecoderWeights | None = weights
        self._kv_kind = kv_kind
        arena = workspace.arena
        self._positions = arena.array("positions").view(np.int64)
        self._addresses = arena.array("caches").view(np.int64)
        self._states = arena.array("states").view(np.int64)
        rotary = config.rope.rotary_dim
        self._rope_table = arena.array("rope").view(np.float32).reshape(PREFILL_ROWS, 2, rotary // 2)

    def close(self) -> None:
        """See DeviceModel.close."""
        super().close()
        self._team.close()
        self._weights = None
        empty = np.empty(0, dtype=np.int64)
        self._positions, self._addresses, self._states = empty, empty, empty
        self._rope_table = np.empty((0, 2, 0), dtype=np.float32)
        del self._workspace, self._prefill

    def _run(
        self, held: SequenceCache, tokens: Tokens, logits: Logits, spliced: Spliced, rope_positions: RopePositions
    ) -> None:
        for start in range(0, len(tokens), PREFILL_ROWS):
            if self._team.adapt():
                self._prefill.follow(self._team.active)
            stop = min(start + PREFILL_ROWS, len(tokens))
            turned = None if rope_positions is None else rope_positions[:, start:stop]
            wanted = logits if stop == len(tokens) else None
            self._part(held, tokens[start:stop], wanted, within(spliced, start, stop), turned)

    def _part(
        self, cache: SequenceCache, tokens: Tokens, logits: Logits, spliced: Spliced, rope_positions: RopePositions
    ) -> None:
        space, n = self._workspace, len(tokens)
        first = cache.length
        positions = np.arange(first, first + n, dtype=np.int64)
        self._positions[:n] = positions
        self._addresses[:n] = cache.kv.address
        self._states[:n] = cache.state_address
        turned = positions + cache.rope_delta if rope_positions is None else rope_positions.astype(np.int64)
        self._rope.table(turned, self._rope_table[:n])
        rows = 0 if logits is None else 1
        target = 0 if logits is None else logits.ctypes.data
        layers = self.config.num_layers
        if n > STEP_ROWS or spliced:
            self._prefill.run(tokens, cache, rows, spliced)
            layers = 0
        if layers or rows:
            splits = self._splits(n, first + n)
            self._team.run(run_step, n, splits, layers, tokens, space.table, space.shape, space.buffers, target, rows)
        cache.advance(n)

    def _splits(self, n: int, length: int) -> int:
        threads = self._team.threads
        even = (n * self.config.num_kv_heads) % threads == 0
        return 1 if even or length < _SPLIT_LENGTH else threads

    def _new_sequence(self) -> SequenceCache:
        full = sum(kind is LayerKind.FULL for kind in self.config.layer_kinds)
        shape = self._workspace.shape
        state = state_shape(self.config)
        return SequenceCache(
            KvCache(self._kv_kind, full, shape.kv_heads, shape.head_dim, self.context_length),
            None if state is None else RecurrentState(state),
        )
