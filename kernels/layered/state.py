"""DeviceState: convolution rings and recurrent states of one sequence on a device, in the layout of gdn.state."""

import torch

from neuron.kernels.gdn.state import RecurrentState, StateShape


class DeviceState:
    """`data` float32 [layers, layer floats], zero before the first token. On the CPU it is the memory of `host`."""

    def __init__(self, shape: StateShape, device: torch.device) -> None:
        self.shape = shape
        self.host: RecurrentState | None = None
        if device.type == "cpu":
            self.host = RecurrentState(shape)
            self.data = torch.from_numpy(self.host.data)
        else:
            self.data = torch.zeros(shape.layers, shape.layer_floats, device=device)

    def reset(self) -> None:
        self.data.zero_()

    def ring(self, layer: int) -> torch.Tensor:
        """float32 [kernel, channels], contiguous; the input at position p lies in row p % kernel."""
        kernel = self.shape.linear.conv_kernel
        return self.data[layer, : kernel * self.shape.channels].view(kernel, -1)

    def recurrent(self, layer: int) -> torch.Tensor:
        """float32 [Hv, K, V], contiguous."""
        linear, first = self.shape.linear, self.shape.ring_floats
        size = linear.value_heads * linear.key_dim * linear.value_dim
        part = self.data[layer, first : first + size]
        return part.view(linear.value_heads, linear.key_dim, linear.value_dim)
