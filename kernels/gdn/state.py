"""RecurrentState: convolution rings and recurrent states of one sequence over all linear layers, float32."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from neuron.kernels.formats.model_config import LayerKind, LinearAttentionConfig, ModelConfig
from neuron.kernels.weights.matrix import aligned_bytes

Floats = npt.NDArray[np.float32]

#: Each layer's part starts at a multiple of this many floats (a cache line).
_ALIGNED = 16


@dataclass(slots=True, frozen=True)
class StateShape:
    """Floats of one layer: the ring [kernel, channels], then the states [Hv, K, V], grouped order."""

    layers: int
    linear: LinearAttentionConfig

    @property
    def channels(self) -> int:
        shape = self.linear
        return 2 * shape.key_heads * shape.key_dim + shape.value_heads * shape.value_dim

    @property
    def ring_floats(self) -> int:
        return _padded(self.linear.conv_kernel * self.channels)

    @property
    def layer_floats(self) -> int:
        shape = self.linear
        return self.ring_floats + _padded(shape.value_heads * shape.key_dim * shape.value_dim)

    @property
    def nbytes(self) -> int:
        return self.layers * self.layer_floats * 4


def state_shape(config: ModelConfig) -> StateShape | None:
    """None for a model without linear layers."""
    layers = sum(kind is LayerKind.LINEAR for kind in config.layer_kinds)
    return None if config.linear is None or layers == 0 else StateShape(layers, config.linear)


class RecurrentState:
    """`data` float32 [layers, layer floats]. Zero before the first token."""

    def __init__(self, shape: StateShape) -> None:
        self.shape = shape
        self.data: Floats = aligned_bytes(shape.nbytes).view(np.float32).reshape(shape.layers, shape.layer_floats)
        self.reset()

    @property
    def address(self) -> int:
        return self.data.ctypes.data

    def reset(self) -> None:
        self.data[:] = 0.0

    def ring(self, layer: int) -> Floats:
        """float32 [kernel, channels]; the input at position p lies in row p % kernel."""
        kernel = self.shape.linear.conv_kernel
        ring: Floats = self.data[layer, : kernel * self.shape.channels].reshape(kernel, -1)
        return ring

    def recurrent(self, layer: int) -> Floats:
        """float32 [Hv, K, V]."""
        shape = self.shape.linear
        size = shape.value_heads * shape.key_dim * shape.value_dim
        part = self.data[layer, self.shape.ring_floats : self.shape.ring_floats + size]
        states: Floats = part.reshape(shape.value_heads, shape.key_dim, shape.value_dim)
        return states


def _padded(count: int) -> int:
    return -(-count // _ALIGNED) * _ALIGNED
