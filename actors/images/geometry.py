"""The size an image is brought to before the vision tower sees it. Pure arithmetic, for the decoder child and tests."""

import math

MAX_ASPECT = 200
"""Longer side over shorter side; beyond it an image is refused, as the published processors do."""


class AspectTooExtreme(Exception):
    """One side is more than MAX_ASPECT times the other."""


def smart_resize(height: int, width: int, *, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """(height, width): multiples of `factor`, the area within the bounds, the aspect ratio kept as well as that allows.

    The rule of the Qwen2-VL image processor, and equal to it wherever that keeps its own budget. A side that would
    vanish stays `factor` long; then the other side gives way, so that the area is at most `max_pixels` always (at
    least one cell). Raises AspectTooExtreme.
    """
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise AspectTooExtreme
    new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
    if new_height * new_width > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        new_height = math.floor(height / shrink / factor) * factor
        new_width = math.floor(width / shrink / factor) * factor
    elif new_height * new_width < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        new_height = math.ceil(height * grow / factor) * factor
        new_width = math.ceil(width * grow / factor) * factor
    return _within(max(new_height, factor), max(new_width, factor), factor, max_pixels)


def _within(height: int, width: int, factor: int, max_pixels: int) -> tuple[int, int]:
    """Cut the longer side to the budget that rounding up, or a side held at one cell, had broken."""
    if height * width <= max_pixels:
        return height, width
    shorter = min(height, width)
    longer = max(factor, max_pixels // (shorter * factor) * factor)
    return (longer, shorter) if height >= width else (shorter, longer)
