"""TowerWeights: the tensors of a vision tower as torch tensors of one type, and their loader."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.formats.model_config import VisionConfig
from neuron.kernels.formats.vision_tensors import CHANNELS
from neuron.kernels.weights.reader import WeightReader

_TYPES = {GgmlType.F32: torch.float32, GgmlType.F16: torch.float16, GgmlType.BF16: torch.bfloat16}


@dataclass(slots=True, frozen=True)
class Affine:
    """Weight [out, in] of the products' type, or scale [n] in float32; bias [out] or [n] in the same type."""

    weight: torch.Tensor
    bias: torch.Tensor

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + self.bias.nbytes


@dataclass(slots=True, frozen=True)
class BlockWeights:
    norm1: Affine
    qkv: Affine
    proj: Affine
    norm2: Affine
    fc1: Affine
    fc2: Affine


@dataclass(slots=True, frozen=True)
class TowerWeights:
    #: [hidden, 3 * patch * patch]: a still image fills all frames of a patch alike, so their weights are summed.
    patch: Affine
    #: float32 [num_position_embeddings, hidden].
    positions: torch.Tensor
    blocks: tuple[BlockWeights, ...]
    merger_norm: Affine
    merger_fc1: Affine
    merger_fc2: Affine

    @property
    def nbytes(self) -> int:
        held = [self.patch, self.merger_norm, self.merger_fc1, self.merger_fc2]
        for block in self.blocks:
            held += [block.norm1, block.qkv, block.proj, block.norm2, block.fc1, block.fc2]
        return self.positions.nbytes + sum(affine.nbytes for affine in held)


def load_tower_weights(
    config: VisionConfig,
    reader: WeightReader,
    prefix: str,
    dtype: torch.dtype,
    report: Callable[[float], None],
    device: torch.device | None = None,
) -> TowerWeights:
    """Read a checked tower to `device` (None: the CPU); matrices become `dtype` (float32, or bfloat16)."""

    def matrix(name: str) -> torch.Tensor:
        read = reader.matrix(prefix + name)
        flat = torch.from_numpy(read.data.reshape(-1)).view(_TYPES[read.kind])
        return flat.view(read.rows, read.cols).to(device, dtype)

    def vector(name: str, kind: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(reader.vector(prefix + name)).to(device, kind)

    def product(name: str) -> Affine:
        return Affine(matrix(f"{name}.weight"), vector(f"{name}.bias", dtype))

    def norm(name: str) -> Affine:
        return Affine(vector(f"{name}.weight", torch.float32), vector(f"{name}.bias", torch.float32))

    blocks = []
    for layer in range(config.depth):
        stem = f"blocks.{layer}."
        blocks.append(
            BlockWeights(
                norm1=norm(f"{stem}norm1"),
                qkv=product(f"{stem}attn.qkv"),
                proj=product(f"{stem}attn.proj"),
                norm2=norm(f"{stem}norm2"),
                fc1=product(f"{stem}mlp.linear_fc1"),
                fc2=product(f"{stem}mlp.linear_fc2"),
            )
        )
        report((layer + 1) / config.depth)
    return TowerWeights(
        patch=_patch(config, vector("patch_embed.proj.weight", torch.float32), vector("patch_embed.proj.bias", dtype)),
        positions=vector("pos_embed.weight", torch.float32).view(config.num_position_embeddings, config.hidden_size),
        blocks=tuple(blocks),
        merger_norm=norm("merger.norm"),
        merger_fc1=product("merger.linear_fc1"),
        merger_fc2=product("merger.linear_fc2"),
    )


def _patch(config: VisionConfig, weight: torch.Tensor, bias: torch.Tensor) -> Affine:
    """The temporal fold, summed in float32 before rounding."""
    area = config.patch_size**2
    frames = weight.view(config.hidden_size, CHANNELS, config.temporal_patch_size, area)
    return Affine(frames.sum(2).view(config.hidden_size, CHANNELS * area).to(bias.dtype), bias)
