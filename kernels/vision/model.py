"""VisionModel: a decoder that also takes images. Their embeddings stay here until the prompt has passed over them."""

from collections.abc import Sequence

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
from neuron.kernels.vision.shelf import ImageShelf
from neuron.kernels.vision.tower import VisionTower


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
        self._images: ImageShelf[Floats] = ImageShelf()

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
        self._images.put(sequence, image, rows)
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

    @property
    def held_images(self) -> int:
        """Images encoded and not yet passed over."""
        return len(self._images)
