"""Shared-memory segments of the daemon and its device processes: logits slots with stamps, and plain bytes.

Unlink a segment as soon as both sides are attached; from then on nothing is left behind, whoever dies.
"""

from typing import Self

import numpy as np
import numpy.typing as npt

from neuron.runtime.errors import ProtocolError
from neuron.runtime.mapping import DIRECTORY, PREFIX, Mapping, sweep_stale

__all__ = ["ALIGNMENT", "DIRECTORY", "PREFIX", "ByteSegment", "SlotSegment", "sweep_stale"]

ALIGNMENT = 4096
"""Rows start at multiples of this many bytes, so that a mapping can be pinned and copied to by a device."""

_STAMP_BYTES = 8


def _align(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


class SlotSegment:
    """`rows` slots of float32 with a stamp each. A slot changes owner by a message on the link, never by its stamp.

    The stamp proves that a row holds what the message says: the writer fills the row, then the stamp, then sends. The
    send and the receive order memory between the processes.
    """

    __slots__ = ("_mapping", "_rows", "_stamps", "row_bytes", "rows")

    def __init__(self, mapping: Mapping, rows: int, row_bytes: int) -> None:
        self._mapping = mapping
        self.rows = rows
        self.row_bytes = row_bytes
        header, stride = _align(rows * _STAMP_BYTES), _align(row_bytes)
        # np.frombuffer holds the mapping, where np.ndarray(buffer=...) would read freed memory after a close.
        self._stamps: npt.NDArray[np.int64] = np.frombuffer(mapping.buffer, np.int64, rows)
        self._rows: list[npt.NDArray[np.float32]] = [
            np.frombuffer(mapping.buffer, np.float32, row_bytes // 4, header + i * stride) for i in range(rows)
        ]

    @staticmethod
    def _nbytes(rows: int, row_bytes: int) -> int:
        if rows <= 0 or row_bytes <= 0 or row_bytes % 4:
            raise ValueError("rows and row_bytes are positive, and a row holds whole float32 values")
        return _align(rows * _STAMP_BYTES) + rows * _align(row_bytes)

    @classmethod
    def create(cls, rows: int, row_bytes: int) -> Self:
        """Raises InsufficientShm."""
        return cls(Mapping.create(cls._nbytes(rows, row_bytes)), rows, row_bytes)

    @classmethod
    def attach(cls, name: str, rows: int, row_bytes: int) -> Self:
        """Raises ProtocolError."""
        return cls(Mapping.attach(name, cls._nbytes(rows, row_bytes)), rows, row_bytes)

    @property
    def name(self) -> str:
        return self._mapping.name

    @property
    def nbytes(self) -> int:
        """Bytes of the whole mapping."""
        return self._mapping.nbytes

    @property
    def buffer(self) -> memoryview:
        """The whole mapping, for pinning it to a device."""
        return self._mapping.buffer

    def row(self, index: int) -> npt.NDArray[np.float32]:
        """A writable view of shape [row_bytes / 4]."""
        return self._rows[index]

    def stamp(self, index: int) -> int:
        return int(self._stamps[index])

    def set_stamp(self, index: int, stamp: int) -> None:
        self._stamps[index] = stamp

    def stamped_row(self, index: int, stamp: int) -> npt.NDArray[np.float32]:
        """The row, once proven to carry `stamp`. Raises ProtocolError for another stamp or a slot that is not there."""
        if not 0 <= index < self.rows:
            raise ProtocolError("A reply names a slot that does not exist.")
        if int(self._stamps[index]) != stamp:
            raise ProtocolError("A slot does not carry the stamp that the reply announced.")
        return self._rows[index]

    def unlink(self) -> None:
        self._mapping.unlink()

    def close(self) -> None:
        """Rows handed out earlier stay readable until they are dropped; `row` must not be called again."""
        self._rows = []
        self._stamps = np.empty(0, np.int64)
        self._mapping.close()


class ByteSegment:
    """A plain run of bytes (pixels on their way to a device)."""

    __slots__ = ("_mapping",)

    def __init__(self, mapping: Mapping) -> None:
        self._mapping = mapping

    @classmethod
    def create(cls, nbytes: int) -> Self:
        """Raises InsufficientShm."""
        return cls(Mapping.create(nbytes))

    @classmethod
    def attach(cls, name: str, nbytes: int | None = None) -> Self:
        """Raises ProtocolError."""
        return cls(Mapping.attach(name, nbytes))

    @property
    def name(self) -> str:
        return self._mapping.name

    @property
    def nbytes(self) -> int:
        return self._mapping.nbytes

    def view(self) -> npt.NDArray[np.uint8]:
        """A writable view of shape [nbytes]."""
        return np.frombuffer(self._mapping.buffer, np.uint8)

    def unlink(self) -> None:
        self._mapping.unlink()

    def close(self) -> None:
        self._mapping.close()
