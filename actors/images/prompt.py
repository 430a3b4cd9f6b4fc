"""Images in a prompt: places for each, and the rotary positions of text and images together. Pure."""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from neuron.actors.errors import TemplateError
from neuron.actors.images.decoder import PromptImage
from neuron.actors.images.processor import ImageProcessor

Grid = tuple[int, int, int]
Positions = npt.NDArray[np.int32]


class ImagePlace(msgspec.Struct, frozen=True):
    """`image` takes the places offset .. offset + image.tokens - 1 of the prompt."""

    image: PromptImage
    offset: int


class PromptImages(msgspec.Struct, frozen=True):
    """The images of one prompt, in order. `positions` int32 [3, prompt]: time, height and width."""

    places: tuple[ImagePlace, ...]
    positions: Positions
    processor: ImageProcessor

    def identity(self, prompt: Sequence[int]) -> npt.NDArray[np.int32]:
        """The prompt as it is recognised again: places of an image carry its digest, below every token's id."""
        ids = np.asarray(prompt, dtype="<i4")
        for place in self.places:
            marks = np.frombuffer(place.image.digest, "<i4") | np.int32(-(1 << 31))
            ids[place.offset : place.offset + place.image.tokens] = np.resize(marks, place.image.tokens)
        return ids

    def rope_delta(self, length: int) -> int:
        """How far the rotary position after the first `length` tokens is from `length`."""
        return int(self.positions[:, :length].max()) + 1 - length


def check_places(ids: Sequence[int], pad: int, images: int) -> None:
    """Raises TemplateError when the template wrote another number of placeholders than there are images.

    A placeholder id comes from the template alone: text of users and tools never becomes one.
    """
    places = sum(token == pad for token in ids)
    if places != images:
        raise TemplateError(f"The model's chat template has {places} places for {images} images.")


def expand(
    ids: Sequence[int], pad: int, images: Sequence[PromptImage], processor: ImageProcessor
) -> tuple[list[int], PromptImages]:
    """The prompt with each placeholder widened to its image's places. Raises TemplateError like `check_places`."""
    check_places(ids, pad, len(images))
    found = [index for index, token in enumerate(ids) if token == pad]
    prompt: list[int] = []
    places = []
    done = 0
    for index, image in zip(found, images, strict=True):
        prompt += ids[done:index]
        places.append(ImagePlace(image, len(prompt)))
        prompt += [pad] * image.tokens
        done = index + 1
    prompt += ids[done:]
    starts = [(place.offset, place.image.grid) for place in places]
    return prompt, PromptImages(tuple(places), rope_positions(len(prompt), starts, merge=processor.merge), processor)


def rope_positions(length: int, images: Sequence[tuple[int, Grid]], *, merge: int) -> Positions:
    """int32 [3, length]: text counts on on all axes; an image (offset, grid in patches) starts where the text before
    it stopped, spreads on height and width, and text goes on after its longer side (Qwen2-VL's M-RoPE)."""
    positions = np.empty((3, length), dtype=np.int32)
    done, following = 0, 0
    for offset, (frames, height, width) in images:
        following = _text(positions, done, offset, following)
        shape = (frames, height // merge, width // merge)
        done = offset + shape[0] * shape[1] * shape[2]
        positions[:, offset:done] = np.indices(shape, dtype=np.int32).reshape(3, -1) + following
        following += max(shape)
    _text(positions, done, length, following)
    return positions


def _text(positions: Positions, begin: int, end: int, first: int) -> int:
    """Fill a run of text; returns the position after it."""
    positions[:, begin:end] = np.arange(first, first + end - begin, dtype=np.int32)
    return first + end - begin
