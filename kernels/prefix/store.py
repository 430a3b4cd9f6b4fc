"""BlockStore: the blocks of one model under the numbers that its user chose. Owned by the model; not thread safe."""

from collections.abc import Iterable, Sequence

from neuron.kernels.prefix.blocks import (
    Block,
    Cached,
    RowsBlock,
    StateBlock,
    copy_rows,
    copy_state,
    put_rows,
    put_state,
)


class BlockStore:
    """A block is there whole or not at all, and never changes."""

    def __init__(self) -> None:
        self._blocks: dict[int, Block] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self._blocks.values())

    def save_rows(self, number: int, cache: Cached, begin: int, end: int) -> int:
        """Keep the rows of positions begin..end-1; returns bytes. ValueError for a number in use."""
        self._check_free(number)
        return self._put(number, copy_rows(cache, begin, end))

    def save_state(self, number: int, cache: Cached) -> int:
        """Keep the recurrent state at the sequence's length; returns bytes. ValueError for a number in use."""
        self._check_free(number)
        return self._put(number, copy_state(cache))

    def restore(self, cache: Cached, keep: int, rows: Sequence[int], state: int) -> int:
        """Make `cache` hold its own first `keep` positions, then those of `rows`; returns the length.

        `rows` follow one another and begin at or before `keep`. `state` is the number of the state at the new
        length, 0 for a model without one. Raises ValueError, before anything has changed, when they do not fit.
        """
        blocks = [self._rows(number) for number in rows]
        length = keep
        for block in blocks:
            if block.begin > length or block.end <= length:
                raise ValueError(f"rows {block.begin} to {block.end} do not continue {length} positions")
            length = block.end
        if not 0 <= keep <= cache.length or not 0 < length <= cache.context:
            raise ValueError(f"{keep} of {cache.length} positions cannot be kept to hold {length}")
        held = self._state(state, length) if state else None
        if (held is None) is cache.recurrent:
            raise ValueError("the state is of another kind of model")
        place = keep
        for block in blocks:
            put_rows(cache, block, place)
            place = block.end
        if held is not None:
            put_state(cache, held)
        return cache.place(length)

    def drop(self, numbers: Iterable[int]) -> int:
        """Forget blocks; unknown numbers are passed over. Returns bytes."""
        dropped = [self._blocks.pop(number) for number in numbers if number in self._blocks]
        return sum(block.nbytes for block in dropped)

    def clear(self) -> None:
        self._blocks.clear()

    def _put(self, number: int, block: Block) -> int:
        self._blocks[number] = block
        return block.nbytes

    def _check_free(self, number: int) -> None:
        if number <= 0 or number in self._blocks:
            raise ValueError(f"block {number} is in use")

    def _rows(self, number: int) -> RowsBlock:
        block = self._blocks.get(number)
        if not isinstance(block, RowsBlock):
            raise ValueError(f"block {number} holds no rows")
        return block

    def _state(self, number: int, length: int) -> StateBlock:
        block = self._blocks.get(number)
        if not isinstance(block, StateBlock) or block.length != length:
            raise ValueError(f"block {number} holds no state after {length} tokens")
        return block
