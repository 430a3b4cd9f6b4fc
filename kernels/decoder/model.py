"""DecoderModel: a resident decoder-only transformer, the DeviceModel of the CPU."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from neuron.kernels.arguments import check_forward
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
from neuron.kernels.prefix.store import BlockStore
from neuron.kernels.threads import Team

#: From this length on, one token's attention is split over threads by position as well as by head.
_SPLIT_LENGTH = 64
Spliced = Sequence[tuple[int, npt.NDArray[np.float32]]]
"""(offset among the tokens, rows float32 [k, hidden]): embeddings that stand where the tokens' own would."""


class DecoderModel:
    """Implements kernels.engine.DeviceModel. A sequence's cache is made at its first token and reused after `clear`."""

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
        self.config = config
        self.vocab_size = weights.embedding.rows
        self.context_length = context_length
        self.summary = summary
        self.memory = ModelMemory(
            weights=weights.nbytes,
            kv_per_token=config.kv_elements_per_token * kv_kind.type_size,
            state=config.state_bytes,
            workspace=workspace.nbytes + prefill.nbytes,
        )
        self._workspace, self._prefill, self._rope, self._team = workspace, prefill, rope, team
        self._weights: DecoderWeights | None = weights
        self._kv_kind = kv_kind
        self._caches: dict[int, SequenceCache] = {}
        self._free: list[SequenceCache] = []
        self._blocks = BlockStore()
        arena = workspace.arena
        self._positions = arena.array("positions").view(np.int64)
        self._addresses = arena.array("caches").view(np.int64)
        self._states = arena.array("states").view(np.int64)
        rotary = config.rope.rotary_dim
        self._rope_table = arena.array("rope").view(np.float32).reshape(PREFILL_ROWS, 2, rotary // 2)

    def forward(
        self,
        sequence: int,
        tokens: npt.NDArray[np.int32],
        position: int,
        logits: npt.NDArray[np.float32] | None,
    ) -> None:
        """See DeviceModel.forward. Nothing has changed when it raises ValueError."""
        self.forward_spliced(sequence, tokens, position, logits)

    def forward_spliced(
        self,
        sequence: int,
        tokens: npt.NDArray[np.int32],
        position: int,
        logits: npt.NDArray[np.float32] | None,
        *,
        spliced: Spliced = (),
        rope_positions: npt.NDArray[np.int32] | None = None,
        rope_delta: int | None = None,
    ) -> None:
        """`forward` with embeddings from elsewhere and rotary positions [3, n] of their own.

        `rope_delta` is kept for calls without positions. Nothing has changed when it raises ValueError.
        """
        # A copy: for a view of a message, which is read-only, everything would be compiled once more.
        tokens = np.array(tokens, dtype=np.int32)
        check_forward(
            tokens,
            position,
            logits,
            rope_positions,
            held=self.length(sequence),
            context=self.context_length,
            vocab=self.vocab_size,
        )
        cache = self._cache(sequence)
        for start in range(0, len(tokens), PREFILL_ROWS):
            if self._team.adapt():
                self._prefill.follow(self._team.active)
            part = tokens[start : start + PREFILL_ROWS]
            last = start + PREFILL_ROWS >= len(tokens)
            inside = _rows_within(spliced, start, start + len(part))
            turned = None if rope_positions is None else rope_positions[:, start : start + len(part)]
            try:
                self._part(cache, part, logits if last else None, inside, turned)
            except BaseException:
                cache.abandon()
                raise
        if rope_delta is not None:
            cache.set_rope_delta(rope_delta)

    def clear(self, sequence: int, keep: int = 0) -> int:
        """See DeviceModel.clear. Memory of an emptied cache goes back to the system."""
        cache = self._caches.get(sequence)
        if cache is None:
            return 0
        held = cache.truncate(keep)
        if held == 0:
            self._free.append(self._caches.pop(sequence))
        return held

    def length(self, sequence: int) -> int:
        """Tokens that `sequence` holds."""
        cache = self._caches.get(sequence)
        return 0 if cache is None else cache.length

    def save_rows(self, sequence: int, block: int, begin: int, end: int) -> int:
        """See DeviceModel.save_rows."""
        return self._blocks.save_rows(block, self._held(sequence), begin, end)

    def save_state(self, sequence: int, block: int) -> int:
        """See DeviceModel.save_state."""
        return self._blocks.save_state(block, self._held(sequence))

    def restore_prefix(self, sequence: int, keep: int, rows: Sequence[int], state: int) -> int:
        """See DeviceModel.restore_prefix."""
        return self._blocks.restore(self._cache(sequence), keep, rows, state)

    def drop_blocks(self, blocks: Sequence[int]) -> int:
        """See DeviceModel.drop_blocks."""
        return self._blocks.drop(blocks)

    def close(self) -> None:
        """See DeviceModel.close."""
        self._blocks.clear()
        for cache in (*self._caches.values(), *self._free):
            cache.close()
        self._caches.clear()
        self._free.clear()
        self._team.close()
        self._weights = None
        empty = np.empty(0, dtype=np.int64)
        self._positions, self._addresses, self._states = empty, empty, empty
        self._rope_table = np.empty((0, 2, 0), dtype=np.float32)
        del self._workspace, self._prefill

    def _part(
        self,
        cache: SequenceCache,
        tokens: npt.NDArray[np.int32],
        logits: npt.NDArray[np.float32] | None,
        spliced: Spliced,
        rope_positions: npt.NDArray[np.int32] | None,
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

    def _held(self, sequence: int) -> SequenceCache:
        cache = self._caches.get(sequence)
        if cache is None:
            raise ValueError(f"sequence {sequence} holds nothing")
        return cache

    def _cache(self, sequence: int) -> SequenceCache:
        cache = self._caches.get(sequence)
        if cache is None:
            cache = self._free.pop() if self._free else self._new_cache()
            self._caches[sequence] = cache
        return cache

    def _new_cache(self) -> SequenceCache:
        full = sum(kind is LayerKind.FULL for kind in self.config.layer_kinds)
        shape = self._workspace.shape
        state = state_shape(self.config)
        return SequenceCache(
            KvCache(self._kv_kind, full, shape.kv_heads, shape.head_dim, self.context_length),
            None if state is None else RecurrentState(state),
        )


def _rows_within(spliced: Spliced, start: int, stop: int) -> Spliced:
    """The rows that stand at tokens start..stop, with offsets from `start`."""
    inside = []
    for offset, rows in spliced:
        first, last = max(offset, start), min(offset + len(rows), stop)
        if first < last:
            inside.append((first - start, rows[first - offset : last - offset]))
    return inside
