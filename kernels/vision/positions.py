"""Where the patches of an image lie: block order, the resampled position table, rotary angles. Pure array code."""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

THETA = 10_000.0


def block_order(height: int, width: int, merge: int) -> tuple[Ints, Ints]:
    """(rows, columns) int64 [height * width] of a grid of patches, in blocks of merge x merge: the tower's order."""
    rows, columns = np.mgrid[0:height, 0:width]

    def blocks(values: Ints) -> Ints:
        cut = values.reshape(height // merge, merge, width // merge, merge)
        return np.ascontiguousarray(cut.transpose(0, 2, 1, 3)).reshape(-1)

    return blocks(rows), blocks(columns)


def table_taps(rows: Ints, columns: Ints, height: int, width: int, side: int) -> tuple[Ints, Floats]:
    """The four entries of a learned table [side * side] that each patch mixes, and their weights: both [patches, 4].

    Bilinear with aligned corners (torch.nn.functional.interpolate's align_corners=True), in float32.
    """
    row_taps, row_weights = _axis(rows, height, side)
    column_taps, column_weights = _axis(columns, width, side)
    taps = row_taps[:, :, None] * side + column_taps[:, None, :]
    weights = row_weights[:, :, None] * column_weights[:, None, :]
    return taps.reshape(-1, 4), weights.reshape(-1, 4)


def _axis(index: Ints, size: int, side: int) -> tuple[Ints, Floats]:
    place = index.astype(np.float32) * np.float32(side - 1) / np.float32(max(size - 1, 1))
    low = np.floor(place)
    fraction = place - low
    taps = np.minimum(low.astype(np.int64)[:, None] + np.arange(2), side - 1)
    return taps, np.stack([1 - fraction, fraction], axis=1)


def rotary(rows: Ints, columns: Ints, head_dim: int) -> tuple[Floats, Floats]:
    """(cosines, sines) float32 [patches, head_dim / 2]: the first half of the pairs turns with the row, the rest
    with the column. Pair i of a head is its elements i and i + head_dim / 2."""
    half = head_dim // 2
    exponent = np.arange(0, half, 2, dtype=np.float32) / np.float32(half)
    frequency = (1.0 / np.float32(THETA) ** exponent).astype(np.float32)
    angles = np.concatenate([rows[:, None] * frequency, columns[:, None] * frequency], axis=1, dtype=np.float32)
    return np.cos(angles), np.sin(angles)
