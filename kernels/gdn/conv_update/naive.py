"""Reference of the convolution of one token per sequence. For tests."""

import numpy as np
import numpy.typing as npt

from neuron.kernels.gdn.conv_full.naive import conv_full
from neuron.kernels.gdn.recurrent.naive import Array


def conv_update(
    x: Array, weight: Array, rings: Array, slots: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]
) -> tuple[Array, Array]:
    """silu(conv) [B, C] of x [B, C], row b being the token at positions[b] of the sequence in rings[slots[b]].

    weight [kernel, C]; rings [slots, kernel, C] as in conv_full.naive.
    """
    rings = rings.copy()
    out = np.empty(x.shape, dtype=x.dtype)
    for row, (slot, position) in enumerate(zip(slots, positions, strict=True)):
        found, rings[slot] = conv_full(x[row : row + 1], weight, rings[slot], int(position))
        out[row] = found[0]
    return out, rings
