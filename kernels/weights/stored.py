"""StoredRows: the part of a stored matrix that is wanted, handed out by chunks of rows. Used while loading only."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from neuron.kernels.errors import IndivisibleShard
from neuron.kernels.formats.errors import shown
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.formats.sharding import WHOLE, Cut, Ranges
from neuron.kernels.weights.matrix import Bytes


@dataclass(slots=True, frozen=True)
class StoredRows:
    """`rows` x `cols` weights of `kind`, the `cut` of a mapped matrix."""

    kind: GgmlType
    rows: int
    cols: int
    _raw: Bytes
    #: None: the rows or the bytes as they lie.
    _chosen: npt.NDArray[np.int64] | None
    _bytes: Ranges | None

    @property
    def row_bytes(self) -> int:
        return self.kind.nbytes(self.cols)

    def copy(self, first: int, out: Bytes) -> None:
        """Rows from `first` on to `out` uint8 [n, row_bytes]."""
        last = first + len(out)
        if self._bytes is None and self._chosen is not None:
            np.take(self._raw, self._chosen[first:last], axis=0, out=out, mode="clip")
            return
        rows = slice(first, last) if self._chosen is None else self._chosen[first:last]
        place = 0
        for begin, end in self._bytes or ((0, self.row_bytes),):
            out[:, place : place + end - begin] = self._raw[rows, begin:end]
            place += end - begin


def stored_rows(
    source: Bytes, kind: GgmlType, rows: int, cols: int, name: str, cut: Cut = WHOLE, target: GgmlType | None = None
) -> StoredRows:
    """The `cut` of the matrix `name` of `rows` x `cols`, to become `target`.

    Raises IndivisibleShard where columns would be cut within a block of the one type or the other.
    """
    raw = source.reshape(rows, kind.nbytes(cols))
    chosen = None if cut.rows is None else indices(cut.rows)
    if cut.cols is None:
        return StoredRows(kind, rows if chosen is None else len(chosen), cols, raw, chosen, None)
    check_borders(cut, kind, cols, name)
    check_borders(cut, kind if target is None else target, cols, name)
    stretches = tuple((kind.nbytes(begin), kind.nbytes(end)) for begin, end in cut.cols)
    wanted = sum(end - begin for begin, end in cut.cols)
    return StoredRows(kind, rows if chosen is None else len(chosen), wanted, raw, chosen, stretches)


def check_borders(cut: Cut, kind: GgmlType, cols: int, name: str) -> None:
    """Raise IndivisibleShard where columns would be cut within a block of `kind`."""
    block = kind.block_size
    if any(place % block for stretch in cut.cols or () for place in stretch):
        raise IndivisibleShard(
            f"Tensor {shown(name)} of {cols} columns in {kind.name.lower()} blocks of {block} cannot be shared out as "
            f"asked: a part would end within a block."
        )


def indices(ranges: Ranges) -> npt.NDArray[np.int64]:
    """int64 [n]: every number of `ranges`, in their order."""
    return np.concatenate([np.arange(begin, end, dtype=np.int64) for begin, end in ranges])
