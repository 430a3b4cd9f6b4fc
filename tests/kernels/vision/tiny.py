"""Tiny random vision models made by transformers, their pixels, and their float32 results."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from neuron.actors.images.patches import to_patches
from neuron.kernels.engine import PixelScale
from tests.kernels.decoder.tiny import VOCAB, Floats
from tests.kernels.hybrid.tiny import BASE, scramble

PATCH, MERGE = 4, 2
IMAGE_TOKEN = 90
SCALE = PixelScale(1 / 255, (0.5, 0.4, 0.3), (0.5, 0.6, 0.7))
VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_heads": 2,
    "patch_size": PATCH,
    "spatial_merge_size": MERGE,
    "temporal_patch_size": 2,
    "out_hidden_size": 48,
    "num_position_embeddings": 49,
    "initializer_range": 0.2,
}


def tiny_vision(folder: Path, seed: int = 0, text: dict[str, Any] | None = None, **changes: Any) -> Any:
    """Save a random Qwen3_5ForConditionalGeneration to `folder`; returns it in float32 and evaluation mode.

    `text` changes the text model's settings, the rest the tower's.
    """
    torch.manual_seed(seed)
    config = transformers.Qwen3_5Config(
        architectures=["Qwen3_5ForConditionalGeneration"],
        text_config={**BASE, "vocab_size": VOCAB, **(text or {})},
        vision_config={**VISION, **changes},
        image_token_id=IMAGE_TOKEN,
        video_token_id=IMAGE_TOKEN + 1,
        vision_start_token_id=IMAGE_TOKEN + 2,
        vision_end_token_id=IMAGE_TOKEN + 3,
        tie_word_embeddings=False,
    )
    model = transformers.Qwen3_5ForConditionalGeneration(config)
    scramble(model)
    model.save_pretrained(folder)
    return model.float().eval()


def picture(height: int, width: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Random pixels uint8 [height, width, 3], in patches."""
    return np.random.default_rng(seed).integers(0, 256, (height * PATCH, width * PATCH, 3), dtype=np.uint8)


def patches_of(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return to_patches(pixels, patch=PATCH, merge=MERGE)


def pixel_values(pixels: npt.NDArray[np.uint8]) -> torch.Tensor:
    """As transformers' processors lay them out: normalised, both frames of the still image."""
    mean, std = np.asarray(SCALE.mean), np.asarray(SCALE.std)
    normal = ((pixels / 255 - mean) / std).astype(np.float32)
    rows, columns, _ = (side // PATCH for side in normal.shape)
    cells = normal.reshape(rows // MERGE, MERGE, PATCH, columns // MERGE, MERGE, PATCH, 3)
    ordered = cells.transpose(0, 3, 1, 4, 6, 2, 5)[:, :, :, :, :, None]
    both = np.broadcast_to(ordered, (*ordered.shape[:5], 2, PATCH, PATCH))
    return torch.from_numpy(both.reshape(rows * columns, -1).copy())


def tower_reference(model: Any, pixels: npt.NDArray[np.uint8]) -> Floats:
    grid = torch.tensor([[1, pixels.shape[0] // PATCH, pixels.shape[1] // PATCH]])
    with torch.inference_mode():
        found: Floats = model.model.visual(pixel_values(pixels), grid_thw=grid).pooler_output.float().numpy()
    return found
