"""MappedFile: a regular file mapped read-only. The only way in which the readers of this package touch the disk."""

import mmap
import os
import stat
from pathlib import Path

import numpy as np
import numpy.typing as npt

from neuron.kernels.formats.errors import FormatError, FormatKind

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_PICKLE_MAGIC = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


class MappedFile:
    """`view` is uint8 [size], read-only. Truncating the file while it is mapped ends the process with SIGBUS."""

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        self.path = path
        self.buffer = buffer
        self.size = len(buffer)
        self.view: npt.NDArray[np.uint8] = np.frombuffer(buffer, dtype=np.uint8)

    @property
    def name(self) -> str:
        return self.path.name


def open_mapped(path: Path, kind: FormatKind) -> MappedFile:
    """Map `path`, following links once, at the start. `kind` is the error for a file that is not usable weights.

    Raises FormatError: missing_shard (not there), source_unreadable (no permission, I/O error), `kind` (empty,
    not a regular file, a pickle).
    """
    refuse_pickle_name(path.name)
    try:
        # Non-blocking, so that a FIFO cannot hold us before its type is known.
        fd = os.open(os.path.realpath(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise FormatError(
            FormatKind.MISSING_SHARD, f"{path.name} is missing; the download may be incomplete."
        ) from error
    except OSError as error:
        raise FormatError(FormatKind.SOURCE_UNREADABLE, f"{path.name} cannot be read: {error.strerror}.") from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise FormatError(kind, f"{path.name} is not a regular file.")
        if status.st_size == 0:
            raise FormatError(kind, f"{path.name} is empty; the download may be incomplete.")
        mapped = mmap.mmap(fd, status.st_size, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise FormatError(FormatKind.SOURCE_UNREADABLE, f"{path.name} cannot be mapped.") from error
    finally:
        os.close(fd)
    refuse_pickle_magic(path.name, mapped[:4])
    return MappedFile(path, mapped)


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
