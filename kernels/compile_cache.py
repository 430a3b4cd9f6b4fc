"""KernelCache: where compiled functions are kept between processes. Used by kernels.jit alone.

Numba looks only at the file of the function it compiles, never at those of its callees. Here each module's code is
kept under a digest of every source of this package that it imports, so that no stale code is ever used and an edit
elsewhere costs nothing. Folders that were not used for a while are removed.
"""

import contextlib
import fcntl
import hashlib
import itertools
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from numba.core.bytecode import FunctionIdentity
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.runtime import rtsys

_PACKAGE = Path(__file__).resolve().parent
_IMPORT = re.compile(r"^\s*from neuron\.kernels([\w.]*) import (\([^)]*\)|[^\n]*)", re.MULTILINE)
#: A folder without use for this long is removed.
KEEP_SECONDS = 14 * 86_400.0
#: How long a process waits for another one that compiles the same module, before it does so itself.
WAIT_SECONDS = 300.0
_FOLDER = "kernels"
_attached: list[Any] = []


@cache
def cache_directory() -> Path | None:
    """The first of NUMBA_CACHE_DIR, CACHE_DIRECTORY (systemd), the user's cache folder and the temporary folder that
    this user owns and can write to. None: code is kept in memory only."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    named = [os.environ.get("NUMBA_CACHE_DIR"), os.environ.get("CACHE_DIRECTORY", "").split(":")[0]]
    candidates = [Path(folder) for folder in named if folder]
    candidates += [Path(home) / "neuron", Path(tempfile.gettempdir()) / f"neuron-{os.getuid()}"]
    for folder in candidates:
        path = folder / _FOLDER
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Another user's folder could hold code that is not ours.
            if os.access(path, os.W_OK | os.X_OK) and path.stat().st_uid == os.getuid():
                return path
        except OSError:
            continue
    return None


def attach(dispatcher: Any, function: Callable[..., Any]) -> None:
    """Let a Numba dispatcher keep its machine code, if there is a place for it."""
    if cache_directory() is not None:
        _count_from_anywhere()
        dispatcher._cache = KernelCache(function)
        _attached.append(dispatcher)


@cache
def _count_from_anywhere() -> None:
    """Numba tells functions of one name and type apart by their number, which every process counts from 1. Kept code
    of two processes may then hold different functions (closures of one factory) under one symbol, and a third process
    that loads both calls one for the other. So each process counts from a place of its own."""
    FunctionIdentity._unique_ids = itertools.count(int.from_bytes(os.urandom(6), "little"))


def fraction_ready() -> float:
    """Of the functions that can be kept, how many are in memory by now. Not every model needs all."""
    ready = sum(bool(dispatcher.overloads) for dispatcher in _attached)
    return ready / max(len(_attached), 1)


def prune(now: float | None = None) -> int:
    """Remove folders that no process has used for KEEP_SECONDS; returns how many."""
    root = cache_directory()
    if root is None:
        return 0
    removed = 0
    limit = (time.time() if now is None else now) - KEEP_SECONDS
    for folder in root.iterdir():
        with contextlib.suppress(OSError):
            if folder.is_dir() and folder.stat().st_mtime < limit:
                shutil.rmtree(folder)
                removed += 1
    return removed


@cache
def digest_of(source: Path) -> str:
    """Digest of the text of `source` and of all sources of this package that it imports, directly or not."""
    seen: dict[str, bytes] = {}
    waiting = [str(source)]
    while waiting:
        file = waiting.pop()
        if file not in seen:
            seen[file], imported = _looked_at(file)
            waiting += imported
    digest = hashlib.sha256()
    for file in sorted(seen):
        path = Path(file)
        name = path.relative_to(_PACKAGE).as_posix() if path.is_relative_to(_PACKAGE) else path.name
        digest.update(name.encode() + b"\0" + seen[file])
    return digest.hexdigest()[:20]


@cache
def _looked_at(file: str) -> tuple[bytes, tuple[str, ...]]:
    """Digest of one source, and the sources of this package that it names itself."""
    text = Path(file).read_bytes()
    return hashlib.sha256(text).digest(), tuple(map(str, _imports(text.decode())))


def _imports(text: str) -> Iterator[Path]:
    for module, names in _IMPORT.findall(text):
        folder = _PACKAGE.joinpath(*module.split(".")[1:])
        if folder.with_suffix(".py").is_file():
            yield folder.with_suffix(".py")
        for name in re.findall(r"\w+", names):
            if (folder / f"{name}.py").is_file():
                yield folder / f"{name}.py"


class _Locator:
    """Numba's question for the place of a function's code."""

    def __init__(self, function: Callable[..., Any], source: Path, root: Path) -> None:
        self._stamp = digest_of(source)
        self._path = root / f"{source.stem}-{self._stamp}"
        self._line = function.__code__.co_firstlineno

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> "_Locator | None":
        root = cache_directory()
        return None if root is None else cls(function, Path(file).resolve(), root)

    def ensure_cache_path(self) -> None:
        self._path.mkdir(parents=True, exist_ok=True, mode=0o700)

    def get_cache_path(self) -> str:
        return str(self._path)

    def get_source_stamp(self) -> str:
        return self._stamp

    def get_disambiguator(self) -> str:
        return str(self._line)


class _Implementation(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (_Locator,)


class KernelCache(FunctionCache):  # type: ignore[misc]
    """Numba's cache, except: what cannot be read counts as absent, what cannot be written is kept in memory only, and
    of several processes that want the same module at once one compiles and the others wait for it."""

    _impl_class = _Implementation

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._lock: int | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = self._read(sig, target_context)
        if found is None and self._acquire():
            # Somebody else may have compiled it meanwhile.
            found = self._read(sig, target_context)
            if found is not None:
                self._release()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            with contextlib.suppress(OSError):
                super().save_overload(sig, data)
        finally:
            self._release()

    def _read(self, sig: Any, target_context: Any) -> Any:
        try:
            # The runtime's symbols are all that kept code needs. Numba would also load everything that it knows how to
            # compile, a quarter of a second; a function that is not kept does that when it is compiled.
            rtsys.initialize(target_context)
            found = self._load_overload(sig, target_context)
        except Exception:
            # A damaged file: compiled anew, and listed anew.
            with contextlib.suppress(OSError):
                os.unlink(self._cache_file._index_path)
            return None
        if found is not None:
            with contextlib.suppress(OSError):
                os.utime(self.cache_path)
        return found

    def _acquire(self) -> bool:
        """Hold the function's lock file from a miss until the code is saved. False: go on without it."""
        if self._lock is not None:
            return False
        try:
            self._impl.locator.ensure_cache_path()
            path = os.path.join(self.cache_path, f"{self._impl.filename_base}.lock")
            lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() > deadline:
                    os.close(lock)
                    return False
                time.sleep(0.05)
                continue
            self._lock = lock
            return True

    def _release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)
