"""Blocks: immutable copies of a stretch of KV rows, or of the recurrent state after a number of tokens."""

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

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


Pages = Callable[[int], npt.NDArray[np.uint8]]
"""Host memory uint8 [bytes] for a copy."""


class Cached(Protocol):
    """A sequence as blocks see it, whichever engine holds it."""

    @property
    def length(self) -> int: ...
    @property
    def context(self) -> int: ...
    @property
    def recurrent(self) -> bool:
        """Whether there is a recurrent state beside the rows."""

    def copy_rows(self, begin: int, end: int, pages: Pages) -> npt.NDArray[np.generic]: ...
    def put_rows(self, rows: npt.NDArray[np.generic], begin: int) -> None:
        """Write [layer][K, V][kv head][n][head_dim] at positions from `begin` on; the length is not moved."""

    def copy_state(self, pages: Pages) -> npt.NDArray[np.float32]: ...
    def put_state(self, state: npt.NDArray[np.float32]) -> None: ...
    def place(self, length: int) -> int:
        """Hold `length` tokens whose rows and state were just put in place; returns it."""


def copy_rows(cache: Cached, begin: int, end: int) -> RowsBlock:
    """Raises ValueError for positions that the sequence does not hold, OutOfMemory."""
    if not 0 <= begin < end <= cache.length:
        raise ValueError(f"positions {begin} to {end} are not all of the {cache.length} held")
    return RowsBlock(begin, end, cache.copy_rows(begin, end, _pages))


def copy_state(cache: Cached) -> StateBlock:
    """Raises ValueError for a model without linear layers, OutOfMemory."""
    if not cache.recurrent or cache.length == 0:
        raise ValueError("the sequence has no recurrent state to keep")
    return StateBlock(cache.length, cache.copy_state(_pages))


def put_rows(cache: Cached, block: RowsBlock, begin: int) -> None:
    """Write the block's positions from `begin` on into the cache's memory; its length is not moved."""
    cache.put_rows(block.rows[:, :, :, begin - block.begin :], begin)


def put_state(cache: Cached, block: StateBlock) -> None:
    cache.put_state(block.state)


def _pages(size: int) -> npt.NDArray[np.uint8]:
    """Pages of their own, which go back to the system with the array: an allocator's heap would keep them."""
    try:
        memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as error:
        raise OutOfMemory(f"A block of {size} bytes cannot be kept.") from error
    return np.frombuffer(memory, dtype=np.uint8)[:size]
