"""VisionTower: the patches of one still image to the embeddings that take its places in a prompt (Qwen3.5's tower).

Norms, the residual stream, rotary angles and softmax are float32; products run in the type of the weights.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from neuron.kernels.engine import PixelScale
from neuron.kernels.formats.model_config import VisionConfig
from neuron.kernels.formats.vision_tensors import CHANNELS
from neuron.kernels.vision.positions import Floats, block_order, rotary, table_taps
from neuron.kernels.vision.weights import Affine, BlockWeights, TowerWeights

EPSILON = 1e-6


class VisionTower:
    def __init__(self, config: VisionConfig, weights: TowerWeights) -> None:
        self.config = config
        self._weights = weights
        self._dtype = weights.patch.weight.dtype
        self._device = weights.patch.weight.device
        self._side = int(config.num_position_embeddings**0.5)

    @property
    def nbytes(self) -> int:
        return self._weights.nbytes

    @property
    def row_bytes(self) -> int:
        """Bytes of one patch as `encode` takes it."""
        return CHANNELS * self.config.patch_size**2

    def tokens(self, grid: tuple[int, int, int]) -> int:
        """Rows that an image of `grid` gives. Raises ValueError for a grid that is no still image of whole cells."""
        frames, height, width = grid
        merge = self.config.spatial_merge_size
        if frames != 1 or height <= 0 or width <= 0 or height % merge or width % merge:
            raise ValueError(f"{list(grid)} is no grid of one frame in cells of {merge} x {merge} patches")
        return height * width // merge**2

    def encode(self, patches: npt.NDArray[np.uint8], grid: tuple[int, int, int], scale: PixelScale) -> Floats:
        """`encode_on_device`, copied to the host if need be."""
        result: Floats = np.ascontiguousarray(self.encode_on_device(patches, grid, scale).cpu().numpy())
        return result

    def encode_on_device(
        self, patches: npt.NDArray[np.uint8], grid: tuple[int, int, int], scale: PixelScale
    ) -> torch.Tensor:
        """uint8 [height * width, 3 * patch * patch] in block order -> float32 [tokens(grid), out_hidden_size].

        Raises ValueError when patches and grid do not fit each other or the tower.
        """
        tokens = self.tokens(grid)
        _, height, width = grid
        if patches.shape != (height * width, self.row_bytes):
            raise ValueError(f"patches of shape {list(patches.shape)} for a grid of {list(grid)}")
        rows, columns = block_order(height, width, self.config.spatial_merge_size)
        with torch.inference_mode():
            hidden = self._embed(patches, scale)
            hidden += self._positions(rows, columns, height, width)
            angles = rotary(rows, columns, self.config.hidden_size // self.config.num_heads)
            cosines, sines = (self._put(values)[:, None, :] for values in angles)
            for block in self._weights.blocks:
                hidden += self._attention(hidden, block, cosines, sines)
                hidden += self._mlp(hidden, block)
            return self._merge(hidden).view(tokens, self.config.out_hidden_size)

    def _put(self, values: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)

    def _embed(self, patches: npt.NDArray[np.uint8], scale: PixelScale) -> torch.Tensor:
        area = self.config.patch_size**2
        pixels = self._put(patches.copy()).float().view(-1, CHANNELS, area) * scale.rescale
        mean, deviation = (self._put(np.array(values, dtype=np.float32)[:, None]) for values in (scale.mean, scale.std))
        return self._product(((pixels - mean) / deviation).view(-1, CHANNELS * area), self._weights.patch)

    def _positions(
        self, rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64], height: int, width: int
    ) -> torch.Tensor:
        taps, weights = table_taps(rows, columns, height, width, self._side)
        entries = self._weights.positions[self._put(taps)]
        return (entries * self._put(weights)[:, :, None]).sum(1)

    def _attention(
        self, hidden: torch.Tensor, block: BlockWeights, cosines: torch.Tensor, sines: torch.Tensor
    ) -> torch.Tensor:
        count, heads = hidden.shape[0], self.config.num_heads
        mixed = self._product(_norm(hidden, block.norm1), block.qkv).view(count, 3, heads, -1)
        query, key = (_rotate(mixed[:, which], cosines, sines) for which in (0, 1))
        query, key, value = (part.to(self._dtype).transpose(0, 1)[None] for part in (query, key, mixed[:, 2]))
        attended = functional.scaled_dot_product_attention(query, key, value)
        return self._product(attended[0].transpose(0, 1).reshape(count, -1), block.proj)

    def _mlp(self, hidden: torch.Tensor, block: BlockWeights) -> torch.Tensor:
        inner = functional.gelu(self._product(_norm(hidden, block.norm2), block.fc1), approximate="tanh")
        return self._product(inner, block.fc2)

    def _merge(self, hidden: torch.Tensor) -> torch.Tensor:
        """The norm comes before merge x merge neighbours are laid side by side; this GELU is the exact one."""
        cells = self.config.spatial_merge_size**2
        side_by_side = _norm(hidden, self._weights.merger_norm).view(-1, cells * self.config.hidden_size)
        inner = functional.gelu(self._product(side_by_side, self._weights.merger_fc1))
        return self._product(inner, self._weights.merger_fc2)

    def _product(self, x: torch.Tensor, affine: Affine) -> torch.Tensor:
        """float32 in and out, whatever the type of the product."""
        return functional.linear(x.to(self._dtype), affine.weight, affine.bias).float()


def _norm(x: torch.Tensor, affine: Affine) -> torch.Tensor:
    return functional.layer_norm(x, (x.shape[-1],), affine.weight, affine.bias, EPSILON)


def _rotate(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """x float32 [patches, heads, head_dim], its halves turned against each other."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)
