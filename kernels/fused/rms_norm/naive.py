"""Reference of RMSNorm (https://arxiv.org/abs/1910.07467). For tests."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]


def rms_norm(x: Array, weight: Array, epsilon: float) -> Array:
    """x / sqrt(mean(x^2) + epsilon) * weight over the last axis."""
    normed: Array = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + epsilon) * weight
    return normed
