"""Patches: the cells of a resized image in the order in which the vision tower takes them."""

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


def to_patches(rgb: Bytes, *, patch: int, merge: int) -> Bytes:
    """uint8 [height, width, 3] -> uint8 [height / patch * width / patch, 3 * patch * patch].

    Sides are multiples of patch * merge. Rows follow each other in blocks of merge x merge patches, so that the
    merger finds a block's patches side by side; a row holds its channels one after another.
    """
    height, width, channels = rgb.shape
    rows, columns = height // patch, width // patch
    cells = rgb.reshape(rows // merge, merge, patch, columns // merge, merge, patch, channels)
    ordered = cells.transpose(0, 3, 1, 4, 6, 2, 5)
    return np.ascontiguousarray(ordered).reshape(rows * columns, channels * patch * patch)
