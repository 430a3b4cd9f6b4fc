"""MappedFile: a regular file mapped read-only. The only way in which the readers of this package touch the disk.

Headers are read, not mapped: a file that is cut short while the daemon looks at its header must not end the daemon.
"""

import mmap
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from neuron.kernels.formats.errors import FormatError, FormatKind, HeaderIncomplete

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_PICKLE_MAGIC = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
#: Holds the whole header of most files: one that does not fit is parsed again from its beginning.
FIRST_READ = 8 << 20

Header = TypeVar("Header")


class MappedFile:
    """`view` is uint8 [size], read-only. Truncating the file while its bytes are read ends the process with SIGBUS."""

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        self.path = path
        self.buffer = buffer
        self.size = len(buffer)
        self.view: npt.NDArray[np.uint8] = np.frombuffer(buffer, dtype=np.uint8)

    @property
    def name(self) -> str:
        return self.path.name

    def release(self, offset: int, nbytes: int) -> None:
        """Take the whole pages of a part out of this process's memory; they are read again when touched again."""
        first = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (offset + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first and hasattr(mmap, "MADV_DONTNEED"):
            self.buffer.madvise(mmap.MADV_DONTNEED, first, last - first)


def open_mapped(
    path: Path, kind: FormatKind, parse: Callable[[memoryview, int, str], Header]
) -> tuple[MappedFile, Header]:
    """Read the header of `path` with `parse` (first bytes, file size, name), then map the file; no byte of the
    mapping is touched here. `kind` is the error for a file that is not usable weights.

    Raises FormatError: missing_shard (not there), source_unreadable (no permission, I/O error), `kind` (empty,
    not a regular file, cut short meanwhile), unsupported_model (a pickle), and whatever `parse` raises.
    """
    refuse_pickle_name(path.name)
    fd = _open(path)
    try:
        size = _regular_size(fd, path.name, kind)
        header = _parse_head(fd, size, path.name, kind, parse)
        return MappedFile(path, _map(fd, size, path.name, kind)), header
    except OSError as error:
        raise FormatError(FormatKind.SOURCE_UNREADABLE, f"{path.name} cannot be read: {error.strerror}.") from error
    finally:
        os.close(fd)


def read_header(path: Path, kind: FormatKind, parse: Callable[[memoryview, int, str], Header]) -> Header:
    """The header alone, as open_mapped reads it. Same errors."""
    return open_mapped(path, kind, parse)[1]


def read_small(path: Path, limit: int, kind: FormatKind) -> bytes:
    """All of a file of at most `limit` bytes. Raises FormatError like open_mapped, `kind` for a larger one."""
    fd = _open(path)
    try:
        size = _regular_size(fd, path.name, kind)
        if size > limit:
            raise FormatError(kind, f"{path.name} is larger than {limit} bytes.")
        return os.pread(fd, limit, 0)
    except OSError as error:
        raise FormatError(FormatKind.SOURCE_UNREADABLE, f"{path.name} cannot be read: {error.strerror}.") from error
    finally:
        os.close(fd)


def _open(path: Path) -> int:
    """A descriptor of the file behind `path`, links followed once, here."""
    try:
        # Non-blocking, so that a FIFO cannot hold us before its type is known.
        return os.open(os.path.realpath(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise FormatError(
            FormatKind.MISSING_SHARD, f"{path.name} is missing; the download may be incomplete."
        ) from error
    except OSError as error:
        raise FormatError(FormatKind.SOURCE_UNREADABLE, f"{path.name} cannot be read: {error.strerror}.") from error


def _regular_size(fd: int, name: str, kind: FormatKind) -> int:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise FormatError(kind, f"{name} is not a regular file.")
    if status.st_size == 0:
        raise FormatError(kind, f"{name} is empty; the download may be incomplete.")
    return status.st_size


def _map(fd: int, size: int, name: str, kind: FormatKind) -> mmap.mmap:
    try:
        return mmap.mmap(fd, size, access=mmap.ACCESS_READ)
    except ValueError as error:
        raise FormatError(kind, f"{name} was cut short while it was read.") from error


def _parse_head(
    fd: int, size: int, name: str, kind: FormatKind, parse: Callable[[memoryview, int, str], Header]
) -> Header:
    wanted = min(size, FIRST_READ)
    while True:
        head = os.pread(fd, wanted, 0)
        if len(head) < wanted:
            raise FormatError(kind, f"{name} was cut short while it was read.")
        refuse_pickle_magic(name, head[:4])
        try:
            return parse(memoryview(head), size, name)
        except HeaderIncomplete as incomplete:
            wanted = min(size, max(4 * wanted, incomplete.needed))


def refuse_pickle_name(name: str) -> None:
    """Raise FormatError(unsupported_model) for the names that hold pickled tensors."""
    if name.lower().endswith(PICKLE_SUFFIXES):
        raise FormatError(
            FormatKind.UNSUPPORTED_MODEL, f"{name} holds pickled tensors, which can run code; use safetensors or GGUF."
        )


def refuse_pickle_magic(name: str, head: bytes) -> None:
    """Raise FormatError(unsupported_model) when `head` (the first four bytes) opens a pickle or a torch archive."""
    if head.startswith(_PICKLE_MAGIC) and not _is_safetensors_length(head):
        raise FormatError(
            FormatKind.UNSUPPORTED_MODEL, f"{name} is a pickle whatever its name says; use safetensors or GGUF."
        )


def _is_safetensors_length(head: bytes) -> bool:
    # A safetensors file opens with its header's length (below 32 MiB, little-endian): byte 3 is 0 or 1, and a
    # header of 640, 896, ... bytes starts with 0x80 as a pickle does. Protocol bytes 2..5 leave 0x0280..0x0580.
    return head[:1] == b"\x80" and head[2:4] == b"\x00\x00"
