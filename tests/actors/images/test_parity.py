"""Pixels as the model sees them against transformers' image processor: the PIL/numpy backend (no torchvision).

Its resampling tolerance is nil here, since both ends resize the same 8-bit raster with Pillow's bicubic filter: what
is left is float32 rounding of the normalisation.
"""

import io
from collections.abc import AsyncIterator
from functools import cache

import numpy as np
import pytest
from PIL import Image, ImageOps
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from neuron.actors.images.decoder import ImageDecoder, PromptImage
from neuron.actors.images.processor import ImageProcessor
from neuron.actors.request import ImagePart
from tests.actors.images.files import encoded, textured, uri

pytestmark = pytest.mark.anyio
PROCESSOR = ImageProcessor(
    patch=16,
    merge=2,
    temporal=2,
    min_pixels=65536,
    max_pixels=1 << 20,
    rescale=1 / 255,
    mean=(0.48, 0.46, 0.41),
    std=(0.27, 0.26, 0.28),
)


@cache
def kinds() -> dict[str, bytes]:
    """Twenty images of odd kinds: modes, formats, sizes and aspect ratios."""
    photo, rng = textured(321, 243), np.random.default_rng(1)
    tags = Image.Exif()
    tags[0x0112] = 6
    return {
        "one pixel": encoded(Image.new("RGB", (1, 1), (255, 0, 0))),
        "odd sides": encoded(textured(449, 447)),
        "large": encoded(textured(1300, 1100), "JPEG"),
        "wide": encoded(textured(1500, 60)),
        "tall": encoded(textured(31, 639)),
        "already in cells": encoded(textured(320, 256)),
        "grey": encoded(photo.convert("L")),
        "bilevel": encoded(photo.convert("1")),
        "palette": encoded(photo.convert("P", palette=Image.Palette.ADAPTIVE)),
        "gif": encoded(photo, "GIF"),
        "jpeg": encoded(photo, "JPEG", quality=60),
        "progressive jpeg": encoded(photo, "JPEG", progressive=True),
        "grey jpeg": encoded(photo.convert("L"), "JPEG"),
        "cmyk jpeg": encoded(photo.convert("CMYK"), "JPEG"),
        "turned jpeg": encoded(photo, "JPEG", exif=tags),
        "webp": encoded(photo, "WEBP", quality=70),
        "lossless webp": encoded(photo, "WEBP", lossless=True),
        "bmp": encoded(photo, "BMP"),
        "interlaced noise": encoded(Image.fromarray(rng.integers(0, 256, (77, 201, 3), dtype=np.uint8))),
        "opaque alpha": encoded(photo.convert("RGBA")),
    }


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def decoder() -> AsyncIterator[ImageDecoder]:
    made = ImageDecoder(processes=1)
    yield made
    made.close()


def normalised(image: PromptImage) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """What the tower computes of the patches, with both frames of the still image."""
    cells = image.patches.astype(np.float32).reshape(len(image.patches), 3, 1, 256) * np.float32(PROCESSOR.rescale)
    mean, std = (np.asarray(values, np.float32)[:, None, None] for values in (PROCESSOR.mean, PROCESSOR.std))
    return np.repeat((cells - mean) / std, 2, axis=2).reshape(len(image.patches), -1)


def test_there_are_twenty() -> None:
    assert len(kinds()) == 20


@pytest.mark.parametrize("kind", kinds())
async def test_equal_to_the_published_processor(decoder: ImageDecoder, kind: str) -> None:
    content = kinds()[kind]
    (ours,) = await decoder.decode([ImagePart(uri(content), "here")], PROCESSOR)
    published = Qwen2VLImageProcessorPil(
        size={"shortest_edge": PROCESSOR.min_pixels, "longest_edge": PROCESSOR.max_pixels},
        patch_size=16,
        merge_size=2,
        temporal_patch_size=2,
        image_mean=list(PROCESSOR.mean),
        image_std=list(PROCESSOR.std),
    )
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    theirs = published(images=[upright], return_tensors="np")
    assert theirs["image_grid_thw"].tolist() == [list(ours.grid)]
    assert np.abs(normalised(ours) - theirs["pixel_values"]).max() <= 1e-5
