"""Named memory that two processes map: reserved at creation, private to the user, swept when its owner died.

Made with `multiprocessing.shared_memory`, but out of sight of its resource tracker, which unlinks segments still in use
and prints warnings about them: who unlinks what is settled here (CPython can be told so only from 3.13 on).
"""

import errno
import fcntl
import os
import re
import secrets
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from typing import Self

from neuron.runtime.errors import InsufficientShm, ProtocolError

DIRECTORY = "/dev/shm"
PREFIX = "neuron"
_NAME = re.compile(PREFIX + r"-(?P<pid>[1-9][0-9]{0,9})-[0-9a-f]{24}")

_NO_ROOM = (errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT)


class UntrackedSharedMemory(SharedMemory):
    """SharedMemory of which no resource tracker ever hears, on every supported Python."""

    _fd: int

    def __init__(self, name: str, create: bool = False, size: int = 0) -> None:
        if sys.version_info >= (3, 13):
            super().__init__(name, create, size, track=False)
        else:
            with _tracker_silenced():
                super().__init__(name, create, size)

    def unlink(self) -> None:
        """Remove the name; mappings stay."""
        if sys.version_info >= (3, 13):
            super().unlink()
        else:
            with _tracker_silenced():
                super().unlink()

    def close(self) -> None:
        """Give the mapping up. A view that still exists keeps the memory, but not the descriptor."""
        try:
            super().close()
        except BufferError:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


_silencing = threading.RLock()  # A failed creation unlinks itself in between.


@contextmanager
def _tracker_silenced() -> Iterator[None]:
    """Before 3.13 every SharedMemory registers itself; unregistering afterwards would start the tracker process."""
    with _silencing:
        register, unregister = resource_tracker.register, resource_tracker.unregister
        resource_tracker.register = resource_tracker.unregister = _ignore
        try:
            yield
        finally:
            resource_tracker.register, resource_tracker.unregister = register, unregister


def _ignore(name: object, rtype: str) -> None:
    return None


class Mapping:
    """One mapped segment of `nbytes` bytes. Its maker holds a lock on the file until the name or the maker is gone."""

    __slots__ = ("_memory", "_owner_lock", "name", "nbytes")

    def __init__(self, memory: UntrackedSharedMemory, owner_lock: int | None) -> None:
        self._memory: UntrackedSharedMemory | None = memory
        self._owner_lock = owner_lock
        self.name = memory.name
        self.nbytes = memory.size

    @classmethod
    def create(cls, nbytes: int) -> Self:
        """Make and reserve a zeroed segment with a random name, mode 0600.

        Raises InsufficientShm. Reserving matters: a sparse segment is made without complaint and kills its first writer
        with SIGBUS when the file system is full.
        """
        if nbytes <= 0:
            raise ValueError("a segment has at least one byte")
        name = f"{PREFIX}-{os.getpid()}-{secrets.token_hex(12)}"
        try:
            memory = UntrackedSharedMemory(name, create=True, size=nbytes)
        except OSError as error:
            raise _insufficient(nbytes) from error
        try:
            owner_lock = os.open(os.path.join(DIRECTORY, name), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            memory.unlink()
            raise _insufficient(nbytes) from error
        mapping = cls(memory, owner_lock)
        try:
            fcntl.flock(owner_lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            _reserve(owner_lock, nbytes)
        except BaseException:
            mapping.close()
            raise
        return mapping

    @classmethod
    def attach(cls, name: str, nbytes: int | None = None) -> Self:
        """Map a segment made by another process of this user; `nbytes` when its size is known.

        Raises ProtocolError when the name, the owner or the size is not what it must be.
        """
        if _NAME.fullmatch(name) is None:
            raise ProtocolError("Not the name of a shared-memory segment.")
        try:
            info = os.stat(os.path.join(DIRECTORY, name), follow_symlinks=False)
            right_size = info.st_size > 0 and nbytes in (None, info.st_size)
            if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid() or not right_size:
                raise ProtocolError("A shared-memory segment is not what was announced.")
            return cls(UntrackedSharedMemory(name), None)
        except (OSError, ValueError) as error:
            raise ProtocolError("A shared-memory segment cannot be opened.") from error

    @property
    def buffer(self) -> memoryview:
        if self._memory is None or self._memory.buf is None:
            raise ValueError("the segment is closed")
        return self._memory.buf

    def unlink(self) -> None:
        """Remove the name; mappings stay. Call once both sides are attached. Calling it again does nothing."""
        if self._owner_lock is None or self._memory is None:
            return
        lock, self._owner_lock = self._owner_lock, None
        try:
            self._memory.unlink()
        except FileNotFoundError:
            pass
        finally:
            os.close(lock)

    def close(self) -> None:
        """Give the mapping up (and unlink, when this side made it). Views that still exist stay valid until they go."""
        self.unlink()
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()


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
