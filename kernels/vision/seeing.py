"""Seeing: a resident model that also takes images. They stay here until the prompt has passed over them."""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from neuron.kernels.engine import PixelScale, Span
from neuron.kernels.resident import H, Logits, R, ResidentModel, Tokens
from neuron.kernels.vision.shelf import ImageShelf


class Seeing(ResidentModel[H, R]):
    """Implements kernels.engine.SeeingModel, before an engine's own model among the bases, but for `_encode`.

    Who is made of it makes `_images`. Every rank runs the whole tower.
    """

    _images: ImageShelf[R]

    @abstractmethod
    def _encode(self, patches: npt.NDArray[np.uint8], grid: tuple[int, int, int], scale: PixelScale) -> R:
        """Rows [places, hidden] of one image."""

    @property
    def held_images(self) -> int:
        """Images encoded and not yet passed over."""
        return len(self._images)

    def encode_image(
        self,
        sequence: int,
        image: int,
        patches: npt.NDArray[np.uint8],
        grid: tuple[int, int, int],
        scale: PixelScale,
    ) -> int:
        """See SeeingModel.encode_image."""
        rows = self._encode(patches, grid, scale)
        self._images.put(sequence, image, rows)
        return len(rows)

    def forward_with_images(
        self,
        sequence: int,
        tokens: Tokens,
        position: int,
        logits: Logits,
        spans: tuple[Span, ...],
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

    def close(self) -> None:
        """See DeviceModel.close."""
        self._images.clear()
        super().close()
