"""VisionModel: a decoder that also takes images. Their embeddings stay here until the prompt has passed over them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from neuron.kernels.attention.rope import Rope
from neuron.kernels.decoder.buffers import Workspace
from neuron.kernels.decoder.model import DecoderModel
from neuron.kernels.decoder.prefill import Prefill
from neuron.kernels.decoder.weights import DecoderWeights
from neuron.kernels.engine import ModelMemory, PixelScale, Span
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.formats.model_config import ModelConfig
from neuron.kernels.threads import Team
from neuron.kernels.vision.positions import Floats
from neuron.kernels.vision.tower import VisionTower


@dataclass(slots=True)
class EncodedImage:
    """`rows` float32 [places, hidden]."""

    sequence: int
    rows: Floats


class VisionModel(DecoderModel):
    """Implements kernels.engine.SeeingModel."""

    def __init__(
        self,
        tower: VisionTower,
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
        seeing = f"{summary}, vision tower of {tower.config.depth} blocks"
        super().__init__(config, weights, workspace, prefill, rope, team, context_length, kv_kind, seeing)
        self.tower = tower
        memory = self.memory
        self.memory = ModelMemory(
            weights=memory.weights + tower.nbytes,
            kv_per_token=memory.kv_per_token,
            state=memory.state,
            workspace=memory.workspace,
        )
        self._images: dict[int, EncodedImage] = {}

    def encode_image(
        self,
        sequence: int,
        image: int,
        patches: npt.NDArray[np.uint8],
        grid: tuple[int, int, int],
        scale: PixelScale,
    ) -> int:
        """See SeeingModel.encode_image."""
        rows = self.tower.encode(patches, grid, scale)
        self._images[image] = EncodedImage(sequence, rows)
        return len(rows)

    def forward_with_images(
        self,
        sequence: int,
        tokens: npt.NDArray[np.int32],
        position: int,
        logits: npt.NDArray[np.float32] | None,
        spans: tuple[Span, ...],
        positions: npt.NDArray[np.int32],
        rope_delta: int,
    ) -> None:
        """See SeeingModel.forward_with_images."""
        spliced, ended = [], []
        for image, offset, length in spans:
            encoded = self._images.get(image)
            if encoded is None or encoded.sequence != sequence or len(encoded.rows) != length:
                raise ValueError(f"image {image} of {length} places is not encoded for sequence {sequence}")
            first, last = max(offset, position), min(offset + length, position + len(tokens))
            if first < last:
                spliced.append((first - position, encoded.rows[first - offset : last - offset]))
            if offset + length <= position + len(tokens):
                ended.append(image)
        self.forward_spliced(
            sequence, tokens, position, logits, spliced=spliced, rope_positions=positions, rope_delta=rope_delta
        )
        for image in ended:
            self._images.pop(image, None)

    def clear(self, sequence: int, keep: int = 0) -> int:
        """See DeviceModel.clear. Images that the sequence has not passed over are given up."""
        self._forget_images(sequence)
        return super().clear(sequence, keep)

    def restore_prefix(self, sequence: int, keep: int, rows: Sequence[int], state: int) -> int:
        """See PrefixBlocks.restore_prefix. Images that the sequence has not passed over are given up."""
        self._forget_images(sequence)
        return super().restore_prefix(sequence, keep, rows, state)

    def _forget_images(self, sequence: int) -> None:
        self._images = {name: image for name, image in self._images.items() if image.sequence != sequence}

    def close(self) -> None:
        """See DeviceModel.close."""
        self._images.clear()
        super().close()

    @property
    def held_images(self) -> int:
        """Images encoded and not yet passed over."""
        return len(self._images)
