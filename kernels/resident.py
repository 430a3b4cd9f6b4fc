"""ResidentModel: what the models of both engines do with their sequences. They add how tokens are run."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from neuron.kernels.arguments import check_forward
from neuron.kernels.engine import ModelMemory
from neuron.kernels.prefix.blocks import Cached
from neuron.kernels.prefix.store import BlockStore
from neuron.kernels.vision.shelf import Rows

Tokens = npt.NDArray[np.int32]
Logits = npt.NDArray[np.float32] | None
RopePositions = npt.NDArray[np.int32] | None


class Held(Cached, Protocol):
    """Everything that a model keeps of one sequence."""

    def truncate(self, keep: int) -> int: ...
    def set_rope_delta(self, delta: int) -> None: ...
    def abandon(self) -> None: ...
    def close(self) -> None: ...


H = TypeVar("H", bound=Held)
R = TypeVar("R", bound=Rows)


class ResidentModel(ABC, Generic[H, R]):
    """Implements kernels.engine.DeviceModel but for `_run` and `_new_sequence`. R: rows [k, hidden] of embeddings.

    What is kept of a sequence is made at its first token and used again after `clear`.
    """

    def __init__(self, vocab_size: int, context_length: int, memory: ModelMemory, summary: str) -> None:
        self.vocab_size, self.context_length = vocab_size, context_length
        self.memory, self.summary = memory, summary
        self._sequences: dict[int, H] = {}
        self._free: list[H] = []
        self._blocks = BlockStore()

    @abstractmethod
    def _run(
        self,
        held: H,
        tokens: Tokens,
        logits: Logits,
        spliced: Sequence[tuple[int, R]],
        rope_positions: RopePositions,
    ) -> None:
        """All `tokens` after what is held, whose length moves; arguments are checked."""

    @abstractmethod
    def _new_sequence(self) -> H: ...

    def forward(self, sequence: int, tokens: Tokens, position: int, logits: Logits) -> None:
        """See DeviceModel.forward. Nothing has changed when it raises ValueError."""
        self.forward_spliced(sequence, tokens, position, logits)

    def forward_spliced(
        self,
        sequence: int,
        tokens: Tokens,
        position: int,
        logits: Logits,
        *,
        spliced: Sequence[tuple[int, R]] = (),
        rope_positions: RopePositions = None,
        rope_delta: int | None = None,
    ) -> None:
        """`forward` with embeddings from elsewhere, (offset among the tokens, rows), and rotary positions [3, n].

        `rope_delta` is kept for calls without positions. Nothing has changed when it raises ValueError.
        """
        # A copy: for a view of a message, which is read-only, compiled functions would be compiled once more.
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
        held = self._sequence(sequence)
        try:
            self._run(held, tokens, logits, spliced, rope_positions)
        except BaseException:
            # A device that is lost fails here too; the first cause is the one that counts.
            with suppress(RuntimeError):
                held.abandon()
            raise
        if rope_delta is not None:
            held.set_rope_delta(rope_delta)

    def clear(self, sequence: int, keep: int = 0) -> int:
        """See DeviceModel.clear."""
        held = self._sequences.get(sequence)
        if held is None:
            return 0
        length = held.truncate(keep)
        if length == 0:
            self._free.append(self._sequences.pop(sequence))
        return length

    def length(self, sequence: int) -> int:
        """Tokens that `sequence` holds."""
        held = self._sequences.get(sequence)
        return 0 if held is None else held.length

    def save_rows(self, sequence: int, block: int, begin: int, end: int) -> int:
        """See PrefixBlocks.save_rows. A rank keeps the rows of its own heads."""
        return self._blocks.save_rows(block, self._held(sequence), begin, end)

    def save_state(self, sequence: int, block: int) -> int:
        """See PrefixBlocks.save_state."""
        return self._blocks.save_state(block, self._held(sequence))

    def restore_prefix(self, sequence: int, keep: int, rows: Sequence[int], state: int) -> int:
        """See PrefixBlocks.restore_prefix."""
        return self._blocks.restore(self._sequence(sequence), keep, rows, state)

    def drop_blocks(self, blocks: Sequence[int]) -> int:
        """See PrefixBlocks.drop_blocks."""
        return self._blocks.drop(blocks)

    def close(self) -> None:
        """See DeviceModel.close."""
        self._blocks.clear()
        for held in (*self._sequences.values(), *self._free):
            held.close()
        self._sequences.clear()
        self._free.clear()

    def _held(self, sequence: int) -> H:
        held = self._sequences.get(sequence)
        if held is None:
            raise ValueError(f"sequence {sequence} holds nothing")
        return held

    def _sequence(self, sequence: int) -> H:
        held = self._sequences.get(sequence)
        if held is None:
            held = self._free.pop() if self._free else self._new_sequence()
            self._sequences[sequence] = held
        return held


def within(spliced: Sequence[tuple[int, R]], start: int, stop: int) -> list[tuple[int, R]]:
    """The rows that stand at tokens start..stop-1, with offsets from `start`."""
    inside = []
    for offset, rows in spliced:
        first, last = max(offset, start), min(offset + len(rows), stop)
        if first < last:
            inside.append((first - start, rows[first - offset : last - offset]))
    return inside  # type: ignore[return-value]
