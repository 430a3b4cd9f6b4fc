"""Small image files for the tests, and the processor that most of them are read with."""

import base64
import io
from typing import Any

import numpy as np
from PIL import Image

from neuron.actors.images.processor import ImageProcessor

PROCESSOR = ImageProcessor(
    patch=16,
    merge=2,
    temporal=2,
    min_pixels=1024,
    max_pixels=1 << 20,
    rescale=1 / 255,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
)
RED_DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mP4z8AAAAMBAQD3A0FDAAAAAElFTkSuQmCC"
BOMB = "iVBORw0KGgoAAAANSUhEUgAAw1AAAMNQAQAAAABj1ABnAAAADElEQVR42mNgoAwAAABAAAGJya9DAAAAAElFTkSuQmCC"
WIDE_GREY = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAABEAAAAACB2fwVAAAADUlEQVR42mNoYGBwAAACRQDBT1YMkQAAAABJRU5ErkJggg=="


def encoded(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def uri(content: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64," + base64.b64encode(content).decode()


def textured(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth colours with some grain: every resampling error shows."""
    grain = np.random.default_rng(seed).integers(0, 64, (height, width, 3), dtype=np.uint8)
    y, x = np.ogrid[0:height, 0:width]
    waves = [(x * (3 + k) + y * (5 - 2 * k)) % 384 for k in range(3)]
    smooth = np.minimum(np.stack(waves, axis=-1), 191).astype(np.uint8)
    return Image.fromarray(smooth + grain, "RGB")
