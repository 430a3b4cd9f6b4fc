"""VisionModel: the compiled engine's decoder with a vision tower."""

import numpy as np
import numpy.typing as npt

from neuron.kernels.attention.rope import Rope
from neuron.kernels.decoder.buffers import Workspace
from neuron.kernels.decoder.model import DecoderModel
from neuron.kernels.decoder.prefill import Prefill
from neuron.kernels.decoder.sequence import SequenceCache
from neuron.kernels.decoder.weights import DecoderWeights
from neuron.kernels.engine import ModelMemory, PixelScale
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.formats.model_config import ModelConfig
from neuron.kernels.threads import Team
from neuron.kernels.vision.positions import Floats
from neuron.kernels.vision.seeing import Seeing
from neuron.kernels.vision.shelf import ImageShelf
from neuron.kernels.vision.tower import VisionTower


class VisionModel(Seeing[SequenceCache, Floats], DecoderModel):
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
        self._images = ImageShelf()

    def _encode(self, patches: npt.NDArray[np.uint8], grid: tuple[int, int, int], scale: PixelScale) -> Floats:
        return self.tower.encode(patches, grid, scale)
