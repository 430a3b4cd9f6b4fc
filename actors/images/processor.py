"""ImageProcessor: how one model wants its images (preprocessor_config.json). Built at load, kept on the resident."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from neuron.actors.errors import InvalidConfig
from neuron.actors.text.generation_defaults import read_object
from neuron.kernels.formats.model_config import VisionConfig
from neuron.kernels.formats.projector import Projector

DEFAULT_MAX_PIXELS = 1 << 20
"""The cap of one megapixel: a model's own limit applies where it is lower."""
#: Bounds of the published processors of this family, for models that name none.
_MIN_PIXELS, _MAX_PIXELS = 65_536, 16_777_216
_RESCALE = 1 / 255
_FILES = ("preprocessor_config.json", "processor_config.json")


class ImageProcessor(msgspec.Struct, frozen=True):
    """A pixel value v (0..255) of channel c becomes (v * rescale - mean[c]) / std[c]. Pixel bounds are areas."""

    patch: int
    merge: int
    temporal: int
    min_pixels: int
    max_pixels: int
    rescale: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @property
    def factor(self) -> int:
        """Both sides of a resized image are multiples of this many pixels: one cell, one token."""
        return self.patch * self.merge


def family_processor() -> ImageProcessor:
    """The published processor of this family, for models whose files say nothing (scripts)."""
    return ImageProcessor(
        patch=16,
        merge=2,
        temporal=2,
        min_pixels=_MIN_PIXELS,
        max_pixels=DEFAULT_MAX_PIXELS,
        rescale=_RESCALE,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
    )


def read_processor(
    directory: Path, vision: VisionConfig, model_id: str, *, cap: int = DEFAULT_MAX_PIXELS
) -> ImageProcessor:
    """The processor of the model in `directory`; values it does not name are this family's.

    Raises InvalidConfig for values that do not fit the vision tower or are no numbers.
    """
    return _made(_config(directory, model_id), "preprocessor_config.json", vision, model_id, cap)


def projector_processor(projector: Projector, model_id: str, *, cap: int = DEFAULT_MAX_PIXELS) -> ImageProcessor:
    """As an mmproj file says; values that it does not name are this family's. Raises InvalidConfig."""
    named = {
        "image_mean": projector.mean,
        "image_std": projector.std,
        "min_pixels": projector.min_pixels,
        "max_pixels": projector.max_pixels,
    }
    given = {key: value for key, value in named.items() if value is not None}
    return _made(given, "the projector's metadata", projector.vision, model_id, cap)


def _made(config: Mapping[str, object], where: str, vision: VisionConfig, model_id: str, cap: int) -> ImageProcessor:
    try:
        patch = _whole(config, "patch_size", vision.patch_size)
        merge = _whole(config, "merge_size", vision.spatial_merge_size)
        temporal = _whole(config, "temporal_patch_size", vision.temporal_patch_size)
        size = config.get("size")
        size = size if isinstance(size, Mapping) else {}
        least = _whole(config, "min_pixels", _whole(size, "shortest_edge", _MIN_PIXELS))
        most = _whole(config, "max_pixels", _whole(size, "longest_edge", _MAX_PIXELS))
        processor = ImageProcessor(
            patch=patch,
            merge=merge,
            temporal=temporal,
            min_pixels=least,
            max_pixels=max(min(most, cap), (patch * merge) ** 2),
            rescale=_number(config.get("rescale_factor", _RESCALE)),
            mean=_channels(config.get("image_mean", (0.5, 0.5, 0.5))),
            std=_channels(config.get("image_std", (0.5, 0.5, 0.5))),
        )
    except ValueError as error:
        raise InvalidConfig(f"{where}: {error}.", model_id=model_id) from error
    if (patch, merge, temporal) != (vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size):
        raise InvalidConfig(f"{where}: it does not fit the vision tower.", model_id=model_id)
    if any(value <= 0 for value in processor.std):
        raise InvalidConfig(f"{where}: image_std must be positive.", model_id=model_id)
    return msgspec.structs.replace(processor, min_pixels=min(processor.min_pixels, processor.max_pixels))


def _config(directory: Path, model_id: str) -> Mapping[str, object]:
    for name in _FILES:
        found = read_object(directory / name, model_id)
        nested = found.get("image_processor")
        if isinstance(nested, Mapping):
            return nested
        if found:
            return found
    return {}


def _whole(table: Mapping[str, object], key: str, default: int) -> int:
    value = table.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 1 << 40:
        raise ValueError(f"{key} must be a positive whole number")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e6:
        raise ValueError("a factor, mean or deviation is no number")
    return float(value)


def _channels(value: object) -> tuple[float, float, float]:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 3:
        raise ValueError("image_mean and image_std must hold three numbers")
    red, green, blue = (_number(item) for item in value)
    return red, green, blue
