"""Blocks: immutable copies of a stretch of KV rows, or of the recurrent state after a number of tokens."""

import mmap
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from neuron.kernels.decoder.sequence import SequenceCache
from neuron.kernels.errors import OutOfMemory


@dataclass(slots=True, frozen=True, eq=False)
class RowsBlock:
    """Keys and values of positions begin..end-1: [layer][K, V][kv head][end - begin][head_dim], as in the cache."""

    begin: int
    end: int
    rows: npt.NDArray[np.generic]

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes


@dataclass(slots=True, frozen=True, eq=False)
class StateBlock:
    """float32 [layers, floats] of the linear layers after the first `length` tokens."""

    length: int
    state: npt.NDArray[np.float32]

    @property
    def nbytes(self) -> int:
        return self.state.nbytes


Block = RowsBlock | StateBlock


def copy_rows(cache: SequenceCache, begin: int, end: int) -> RowsBlock:
    """Raises ValueError for positions that the sequence does not hold, OutOfMemory."""
    if not 0 <= begin < end <= cache.length:
        raise ValueError(f"positions {begin} to {end} are not all of the {cache.length} held")
    source = cache.kv.rows[:, :, :, begin:end]
    copy = _pages(source.nbytes).view(source.dtype).reshape(source.shape)
    np.copyto(copy, source)
    copy.setflags(write=False)
    return RowsBlock(begin, end, copy)


def copy_state(cache: SequenceCache) -> StateBlock:
    """Raises ValueError for a model without linear layers, OutOfMemory."""
    if cache.state is None or cache.length == 0:
        raise ValueError("the sequence has no recurrent state to keep")
    source = cache.state.data
    copy = _pages(source.nbytes).view(np.float32).reshape(source.shape)
    np.copyto(copy, source)
    copy.setflags(write=False)
    return StateBlock(cache.length, copy)


def put_rows(cache: SequenceCache, block: RowsBlock, begin: int) -> None:
    """Write the block's positions from `begin` on into the cache's memory; its length is not moved."""
    cache.kv.rows[:, :, :, begin : block.end] = block.rows[:, :, :, begin - block.begin :]


def put_state(cache: SequenceCache, block: StateBlock) -> None:
    assert cache.state is not None
    np.copyto(cache.state.data, block.state)


def _pages(size: int) -> npt.NDArray[np.uint8]:
    """Pages of their own, which go back to the system with the array: an allocator's heap would keep them."""
    try:
        memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as error:
        raise OutOfMemory(f"A block of {size} bytes cannot be kept.") from error
    return np.frombuffer(memory, dtype=np.uint8)[:size]
