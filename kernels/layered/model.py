"""LayeredModel: a resident decoder, or one rank of it, layer by layer. SeeingLayeredModel: one that takes images."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from neuron.kernels.engine import ModelMemory, PixelScale
from neuron.kernels.layered.graph import StepState
from neuron.kernels.layered.passes import Passes
from neuron.kernels.layered.sequence import LayeredSequence
from neuron.kernels.resident import Logits, ResidentModel, RopePositions, Tokens
from neuron.kernels.vision.seeing import Seeing
from neuron.kernels.vision.shelf import ImageShelf
from neuron.kernels.vision.tower import VisionTower


class LayeredModel(ResidentModel[LayeredSequence, torch.Tensor]):
    """Implements kernels.engine.DeviceModel. Ranks but the first take `logits` too, and leave them as they are."""

    def __init__(self, passes: Passes, vocab_size: int, context_length: int, memory: ModelMemory, summary: str) -> None:
        super().__init__(vocab_size, context_length, memory, summary)
        self._passes: Passes | None = passes

    def note_recording(self) -> None:
        """Say in the summary why steps could not be recorded, if so."""
        held = (*self._sequences.values(), *self._free)
        reasons = [one.step.graphed.reason for one in held if one.step is not None and one.step.graphed.reason]
        if reasons:
            self.summary += f", steps not recorded: {reasons[0]}"

    def replayable(self, sequence: int) -> Callable[[], None] | None:
        """The recorded step of `sequence` without the host's part of it, where steps are recorded. For measurements."""
        held = self._held(sequence)
        recorded = held.step is not None and held.step.graphed.state is StepState.RECORDED
        return held.step.graphed.run if recorded and held.step is not None else None

    def close(self) -> None:
        """See DeviceModel.close."""
        super().close()
        if self._passes is not None:
            self._passes.close()
        self._passes = None

    def _run(
        self,
        held: LayeredSequence,
        tokens: Tokens,
        logits: Logits,
        spliced: Sequence[tuple[int, torch.Tensor]],
        rope_positions: RopePositions,
    ) -> None:
        self._running.run(held, tokens, logits, spliced, rope_positions)

    def _new_sequence(self) -> LayeredSequence:
        return self._running.new_sequence()

    @property
    def _running(self) -> Passes:
        if self._passes is None:
            raise ValueError("the model is closed")
        return self._passes


class SeeingLayeredModel(Seeing[LayeredSequence, torch.Tensor], LayeredModel):
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
        self._images = ImageShelf()

    def _encode(self, patches: npt.NDArray[np.uint8], grid: tuple[int, int, int], scale: PixelScale) -> torch.Tensor:
        return self._tower.encode_on_device(patches, grid, scale)
