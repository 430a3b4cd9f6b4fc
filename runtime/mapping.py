"""Named memory that two processes map: reserved at creation, private to the user, swept when its owner died.

A segment is a file of /dev/shm, opened and mapped directly: `multiprocessing.shared_memory` hands every name to a
tracker process that warns about, and unlinks, segments still in use (before Python 3.13, without a way out).
"""

import errno
import fcntl
import mmap
import os
import re
import secrets
import stat
from typing import Self

from neuron.runtime.errors import InsufficientShm, ProtocolError

DIRECTORY = "/dev/shm"
PREFIX = "neuron"
_NAME = re.compile(PREFIX + r"-(?P<pid>[1-9][0-9]{0,9})-[0-9a-f]{24}")

_NO_ROOM = (errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT)


class Mapping:
    """One mapped segment of `nbytes` bytes. Its maker holds a lock on the file until the name or the maker is gone."""

    __slots__ = ("_fd", "_map", "_name", "_path", "nbytes")

    def __init__(self, name: str, path: str, fd: int, nbytes: int) -> None:
        self._name = name
        self._path = path
        self._fd: int | None = fd
        self.nbytes = nbytes
        self._map: mmap.mmap | None = mmap.mmap(fd, nbytes)

    @classmethod
    def create(cls, nbytes: int) -> Self:
        """Make and reserve a zeroed segment with a random name, mode 0600.

        Raises InsufficientShm. Reserving matters: a sparse segment is made without complaint and kills its first writer
        with SIGBUS when the file system is full.
        """
        if nbytes <= 0:
            raise ValueError("a segment has at least one byte")
        name = f"{PREFIX}-{os.getpid()}-{secrets.token_hex(12)}"
        path = os.path.join(DIRECTORY, name)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(path, flags, 0o600)
        except OSError as error:
            raise _insufficient(nbytes) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            _reserve(fd, nbytes)
            return cls(name, path, fd, nbytes)
        except BaseException:
            os.unlink(path)
            os.close(fd)
            raise

    @classmethod
    def attach(cls, name: str, nbytes: int | None = None) -> Self:
        """Map a segment made by another process of this user; `nbytes` when its size is known.

        Raises ProtocolError when the name, the owner or the size is not what it must be.
        """
        if _NAME.fullmatch(name) is None:
            raise ProtocolError("Not the name of a shared-memory segment.")
        path = os.path.join(DIRECTORY, name)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise ProtocolError("A shared-memory segment cannot be opened.") from error
        try:
            info = os.fstat(fd)
            right_size = info.st_size > 0 and nbytes in (None, info.st_size)
            if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid() or not right_size:
                raise ProtocolError("A shared-memory segment is not what was announced.")
            mapping = cls(name, path, fd, info.st_size)
            mapping._release()
        except BaseException:
            os.close(fd)
            raise
        return mapping

    @property
    def name(self) -> str:
        return self._name

    @property
    def buffer(self) -> mmap.mmap:
        if self._map is None:
            raise ValueError("the segment is closed")
        return self._map

    def _release(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)

    def unlink(self) -> None:
        """Remove the name; mappings stay. Call once both sides are attached. Calling it again does nothing."""
        if self._fd is not None:
            try:
                os.unlink(self._path)
            except FileNotFoundError:
                pass
            self._release()

    def close(self) -> None:
        """Give the mapping up (and unlink, when this side made it). Views that still exist stay valid until they go."""
        self.unlink()
        mapping, self._map = self._map, None
        if mapping is not None:
            try:
                mapping.close()
            except BufferError:
                pass  # A view is alive; the memory goes with the last one.


def _reserve(fd: int, nbytes: int) -> None:
    # Asked first: filling a too small file system to the brim, if only for a moment, would starve its other users.
    if nbytes > _free_bytes():
        raise _insufficient(nbytes)
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise _insufficient(nbytes) from error
        raise


def _free_bytes() -> int:
    try:
        info = os.statvfs(DIRECTORY)
    except OSError:
        return 0
    return info.f_bavail * info.f_frsize


def _insufficient(nbytes: int) -> InsufficientShm:
    free = _free_bytes()
    return InsufficientShm(
        f"Shared memory is too small: {nbytes} bytes are needed, {free} are free.", needed_bytes=nbytes, free_bytes=free
    )


def sweep_stale() -> list[str]:
    """Remove segments whose owners are dead; returns their names. Leaves those of other users and running owners.

    Two proofs are asked: no process has the pid in the name, and nobody holds the owner's lock (a daemon in another
    pid namespace may share the directory).
    """
    removed: list[str] = []
    try:
        entries = list(os.scandir(DIRECTORY))
    except OSError:
        return removed
    for entry in entries:
        match = _NAME.fullmatch(entry.name)
        if match is not None and not _alive(int(match["pid"])) and _remove_unlocked(entry.path):
            removed.append(entry.name)
    return removed


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _remove_unlocked(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid():
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
