"""LayeredModel: a resident decoder, or one rank of it, layer by layer. SeeingLayeredModel: one that takes images."""

from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import torch

from neuron.kernels.arguments import check_forward
from neuron.kernels.engine import ModelMemory, PixelScale
from neuron.kernels.engine import Span as ImageSpan
from neuron.kernels.layered.graph import StepState
from neuron.kernels.layered.passes import Passes
from neuron.kernels.layered.sequence import LayeredSequence
from neuron.kernels.prefix.store import BlockStore
from neuron.kernels.vision.shelf import ImageShelf
from neuron.kernels.vision.tower import VisionTower


class LayeredModel:
    """Implements kernels.engine.DeviceModel. Ranks but the first take `logits` too, and leave them as they are."""

    def __init__(self, passes: Passes, vocab_size: int, context_length: int, memory: ModelMemory, summary: str) -> None:
        self.vocab_size, self.context_length, self.memory = vocab_size, context_length, memory
        self._passes: Passes | None = passes
        self.summary = summary
        self._sequences: dict[int, LayeredSequence] = {}
        self._free: list[LayeredSequence] = []
        self._blocks = BlockStore()

    def note_recording(self) -> None:
        """Say in the summary why steps could not be recorded, if so."""
        held = (*self._sequences.values(), *self._free)
        reasons = [one.step.graphed.reason for one in held if one.step is not None and one.step.graphed.reason]
        if reasons:
            self.summary += f", steps not recorded: {reasons[0]}"

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
        spliced: Sequence[tuple[int, torch.Tensor]] = (),
        rope_positions: npt.NDArray[np.int32] | None = None,
        rope_delta: int | None = None,
    ) -> None:
        """`forward` with embeddings from elsewhere and rotary positions [3, n] of their own.

        `rope_delta` is kept for calls without positions. Nothing has changed when it raises ValueError.
        """
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
            self._running.run(held, tokens, logits, spliced, rope_positions)
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

    def replayable(self, sequence: int) -> Callable[[], None] | None:
        """The recorded step of `sequence` without the host's part of it, where steps are recorded. For measurements."""
        held = self._held(sequence)
        recorded = held.step is not None and held.step.graphed.state is StepState.RECORDED
        return held.step.graphed.run if recorded and held.step is not None else None

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
        if self._passes is not None:
            self._passes.close()
        self._passes = None

    @property
    def _running(self) -> Passes:
        if self._passes is None:
            raise ValueError("the model is closed")
        return self._passes

    def _held(self, sequence: int) -> LayeredSequence:
        held = self._sequences.get(sequence)
        if held is None:
            raise ValueError(f"sequence {sequence} holds nothing")
        return held

    def _sequence(self, sequence: int) -> LayeredSequence:
        held = self._sequences.get(sequence)
        if held is None:
            held = self._free.pop() if self._free else self._running.new_sequence()
            self._sequences[sequence] = held
        return held


class SeeingLayeredModel(LayeredModel):
    """Implements kernels.engine.SeeingModel. Every rank runs the whole tower."""

    def __init__(
        self,
        tower: VisionTower,
        passes: Passes,
        vocab_size: int,
        context_length: int,
        memory: ModelMemory,
        summary: str,
    ) -> None:
        super().__init__(passes, vocab_size, context_length, memory, summary)
        self._tower = tower
        self._images: ImageShelf[torch.Tensor] = ImageShelf()

    def encode_image(
        self,
        sequence: int,
        image: int,
        patches: npt.NDArray[np.uint8],
        grid: tuple[int, int, int],
        scale: PixelScale,
    ) -> int:
        """See SeeingModel.encode_image."""
        rows = self._tower.encode_on_device(patches, grid, scale)
        self._images.put(sequence, image, rows)
        return len(rows)

    def forward_with_images(
        self,
        sequence: int,
        tokens: npt.NDArray[np.int32],
        position: int,
        logits: npt.NDArray[np.float32] | None,
        spans: tuple[ImageSpan, ...],
        positions: npt.NDArray[np.int32],
        rope_delta: int,
    ) -> None:
        """See SeeingModel.forward_with_images."""
        end = position + len(tokens)
        spliced = list(self._images.spliced(sequence, spans, position, end))
        self.forward_spliced(
            sequence, tokens, position, logits, spliced=spliced, rope_positions=positions, rope_delta=rope_delta
        )
        self._images.passed(spans, end)

    def clear(self, sequence: int, keep: int = 0) -> int:
        """See DeviceModel.clear. Images that the sequence has not passed over are given up."""
        self._images.forget(sequence)
        return super().clear(sequence, keep)

    def restore_prefix(self, sequence: int, keep: int, rows: Sequence[int], state: int) -> int:
        """See PrefixBlocks.restore_prefix. Images that the sequence has not passed over are given up."""
        self._images.forget(sequence)
        return super().restore_prefix(sequence, keep, rows, state)

    @property
    def held_images(self) -> int:
        """Images encoded and not yet passed over."""
        return len(self._images)

    def close(self) -> None:
        """See DeviceModel.close."""
        self._images.clear()
        super().close()
