"""SequenceCache: everything the model keeps of one sequence. Owned by DecoderModel."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from neuron.kernels.attention.cache import KvCache
from neuron.kernels.gdn.state import RecurrentState
from neuron.kernels.prefix.blocks import Pages


@dataclass(slots=True)
class SequenceCache:
    """KV rows of the full-attention layers and the state of the linear ones. `length`: tokens held."""

    kv: KvCache
    state: RecurrentState | None = None
    #: (length, delta): from this length on, rotary positions are `delta` ahead of the tokens' own (M-RoPE).
    _deltas: list[tuple[int, int]] = field(default_factory=list)

    @property
    def rope_delta(self) -> int:
        """The next token's rotary position minus `length`; images take fewer positions than places."""
        return self._deltas[-1][1] if self._deltas else 0

    def set_rope_delta(self, delta: int) -> None:
        """Holds from the present length on, until the sequence is cut back below it."""
        if delta != self.rope_delta:
            self._deltas.append((self.length, delta))

    @property
    def length(self) -> int:
        return self.kv.length

    @property
    def state_address(self) -> int:
        return 0 if self.state is None else self.state.address

    @property
    def context(self) -> int:
        return self.kv.context

    @property
    def recurrent(self) -> bool:
        return self.state is not None

    def advance(self, tokens: int) -> None:
        """`tokens` more are held; their rows and states are written."""
        self.kv.hold(self.length + tokens)

    def truncate(self, keep: int) -> int:
        """Hold only the first `keep` tokens; returns how many are held.

        A recurrent state cannot be rolled back: with linear layers anything but the whole length empties the
        sequence.
        """
        if keep >= self.length > 0:
            return self.length
        if self.state is not None or keep <= 0:
            return self._empty()
        self._deltas = [entry for entry in self._deltas if entry[0] <= keep]
        return self.kv.truncate(keep)

    def place(self, length: int) -> int:
        """Hold `length` tokens whose rows and state were just put in place."""
        self._deltas.clear()
        self.kv.hold(length)
        return length

    def copy_rows(self, begin: int, end: int, pages: Pages) -> npt.NDArray[np.generic]:
        """Rows of positions begin..end-1, a copy in `pages`."""
        return _copied(self.kv.rows[:, :, :, begin:end], pages)

    def put_rows(self, rows: npt.NDArray[np.generic], begin: int) -> None:
        """Write rows from `begin` on; the length is not moved."""
        self.kv.rows[:, :, :, begin : begin + rows.shape[3]] = rows

    def copy_state(self, pages: Pages) -> npt.NDArray[np.float32]:
        """The recurrent state, a copy in `pages`."""
        assert self.state is not None
        copy: npt.NDArray[np.float32] = _copied(self.state.data, pages).view(np.float32)
        return copy

    def put_state(self, state: npt.NDArray[np.float32]) -> None:
        assert self.state is not None
        np.copyto(self.state.data, state)

    def abandon(self) -> None:
        """A pass over the sequence failed half-way: a recurrent state may have moved, so the sequence is emptied."""
        if self.state is not None:
            self.state.reset()
            self._empty()

    def close(self) -> None:
        """Give the memory back. The cache must not be used again."""
        self.kv.close()
        self.state = None

    def _empty(self) -> int:
        if self.state is not None and self.length:
            self.state.reset()
        self._deltas.clear()
        return self.kv.truncate(0)


def _copied(source: npt.NDArray[np.generic], pages: Pages) -> npt.NDArray[np.generic]:
    copy = pages(source.nbytes).view(source.dtype).reshape(source.shape)
    np.copyto(copy, source)
    copy.setflags(write=False)
    return copy
