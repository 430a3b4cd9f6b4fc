"""compiled: the Numba decorator of this package. Nopython, without the GIL, cached per host CPU and source state.

The cache folder carries a hash of this package's sources, because Numba itself looks only at the file of the
function it compiles, never at those of its callees.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

_state = {"ready": False}
#: Folders whose sources never reach compiled code.
_NEVER_COMPILED = ("formats", "weights")


def compiled(function: Callable[..., Any]) -> Any:
    """Compile `function` at its first call; the machine code is reused by later processes."""
    _prepare_cache()
    return numba.njit(function, nogil=True, cache=True, error_model="numpy", boundscheck=False)


def inlined(function: Callable[..., Any]) -> Any:
    """A helper of compiled functions, with no entry point and no cache of its own."""
    return numba.njit(function, nogil=True, error_model="numpy", boundscheck=False)


def spliced(function: Callable[..., Any]) -> Any:
    """A helper whose body Numba copies into its callers, so that it is optimised once there and not for itself too."""
    return numba.njit(function, nogil=True, error_model="numpy", boundscheck=False, inline="always")


def cache_directory() -> Path:
    """Where compiled code is kept: NUMBA_CACHE_DIR, else the user's cache folder, else a folder that is writable."""
    named = os.environ.get("NUMBA_CACHE_DIR")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    candidates = [Path(named)] if named else []
    candidates += [Path(home) / "neuron", Path(tempfile.gettempdir()) / f"neuron-{os.getuid()}"]
    for folder in candidates:
        path = folder / f"compiled-{_source_hash()}"
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError:
            continue
        # Another user's folder could hold code that is not ours.
        if os.access(path, os.W_OK) and path.stat().st_uid == os.getuid():
            return path
    return Path(tempfile.mkdtemp(prefix="neuron-compiled-"))


def _prepare_cache() -> None:
    if not _state["ready"]:
        numba.config.CACHE_DIR = str(cache_directory())
        _state["ready"] = True


def _source_hash() -> str:
    digest = hashlib.sha256()
    folder = Path(__file__).resolve().parent
    for path in sorted(folder.rglob("*.py")):
        if path.parent.name in _NEVER_COMPILED and path.name != "ggml_types.py":
            continue
        digest.update(path.relative_to(folder).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
