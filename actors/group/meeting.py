"""Where the ranks of a group find each other: a private directory that is gone as soon as they have."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from neuron.actors.errors import TpInitFailed

PREFIX = "neuron-group"
FORGOTTEN_SECONDS = 600.0


@contextlib.contextmanager
def meeting_place() -> Iterator[Path]:
    """A fresh directory that only this user can enter. Raises TpInitFailed where none can be made."""
    sweep()
    try:
        path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}-{os.getpid()}-"))
    except OSError as error:
        raise TpInitFailed("The ranks of the group have no place to meet: no directory can be made.") from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def sweep(parent: Path | None = None) -> None:
    """Remove what daemons left that were ended while ranks were meeting."""
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    with contextlib.suppress(OSError):
        for path in parent.glob(f"{PREFIX}-*-*"):
            pid = path.name.removeprefix(f"{PREFIX}-").partition("-")[0]
            found = path.stat()
            # A process of another namespace cannot be seen from here; nobody meets for so long.
            forgotten = time.time() - found.st_mtime > FORGOTTEN_SECONDS
            if pid.isdecimal() and forgotten and found.st_uid == os.getuid() and not Path(f"/proc/{pid}").exists():
                shutil.rmtree(path, ignore_errors=True)
