"""LayeredSequence: everything the layered engine keeps of one sequence. Owned by LayeredModel."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from neuron.kernels.layered.rows import KvRows
from neuron.kernels.layered.state import DeviceState
from neuron.kernels.layered.step import DecodeStep
from neuron.kernels.prefix.blocks import Pages


@dataclass(slots=True)
class LayeredSequence:
    """KV rows of the full-attention layers and the state of the linear ones. `length`: tokens held."""

    rows: KvRows
    state: DeviceState | None = None
    #: The decode step over these very buffers, where steps are replayed.
    step: DecodeStep | None = None
    length: int = 0
    #: (length, delta): from this length on, rotary positions are `delta` ahead of the tokens' own (M-RoPE).
    _deltas: list[tuple[int, int]] = field(default_factory=list)

    @property
    def context(self) -> int:
        return self.rows.context

    @property
    def recurrent(self) -> bool:
        return self.state is not None

    @property
    def rope_delta(self) -> int:
        """The next token's rotary position minus `length`."""
        return self._deltas[-1][1] if self._deltas else 0

    def set_rope_delta(self, delta: int) -> None:
        """Holds from the present length on, until the sequence is cut back below it."""
        if delta != self.rope_delta:
            self._deltas.append((self.length, delta))

    def truncate(self, keep: int) -> int:
        """Hold only the first `keep` tokens; returns how many are held. A recurrent state cannot be rolled back."""
        if keep >= self.length > 0:
            return self.length
        if self.state is not None or keep <= 0:
            self._empty()
        else:
            self.length = keep
            self._deltas = [entry for entry in self._deltas if entry[0] <= keep]
        return self.length

    def place(self, length: int) -> int:
        """Hold `length` tokens whose rows and state were just put in place."""
        self._deltas.clear()
        self.length = length
        return length

    def abandon(self) -> None:
        """A pass over the sequence failed half-way: a recurrent state may have moved, so the sequence is emptied."""
        if self.state is not None:
            self._empty()

    def close(self) -> None:
        """Give the memory back. The sequence must not be used again."""
        if self.step is not None:
            self.step.graphed.close()
        self.step = None
        self.rows.close()
        self.state = None

    def copy_rows(self, begin: int, end: int, pages: Pages) -> npt.NDArray[np.generic]:
        """Rows of positions begin..end-1 in host memory that `pages` makes: [layer, 2, kv head, position, head_dim]."""
        return _to_host(_bits(self.rows.rows)[:, :, :, begin:end], pages)

    def put_rows(self, rows: npt.NDArray[np.generic], begin: int) -> None:
        """Write rows from `begin` on; `length` is not moved."""
        end = begin + rows.shape[3]
        _bits(self.rows.rows)[:, :, :, begin:end] = torch.from_numpy(rows)

    def copy_state(self, pages: Pages) -> npt.NDArray[np.float32]:
        assert self.state is not None
        copy: npt.NDArray[np.float32] = _to_host(self.state.data, pages).view(np.float32)
        return copy

    def put_state(self, state: npt.NDArray[np.float32]) -> None:
        assert self.state is not None
        self.state.data.copy_(torch.from_numpy(state))

    def _empty(self) -> None:
        self._deltas.clear()
        self.length = 0
        self.rows.empty()
        if self.state is not None:
            self.state.reset()


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """As numbers that numpy has too."""
    return tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor


def _to_host(source: torch.Tensor, pages: Pages) -> npt.NDArray[np.generic]:
    flat = torch.from_numpy(pages(source.numel() * source.element_size())).view(source.dtype)
    copy = flat.view(source.shape)
    copy.copy_(source)
    result: npt.NDArray[np.generic] = copy.numpy()
    return result
