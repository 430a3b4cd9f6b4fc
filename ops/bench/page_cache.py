"""Takes files out of the kernel's page cache, as they are after a boot. For ops.bench.startup."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path


def evict(places: Iterable[Path]) -> int:
    """Every regular file among `places` and below them; returns how many. Needs no privilege.

    Pages that another process has mapped or that are not yet on disk stay: measure cold starts on a quiet machine.
    """
    count = 0
    for path in _files(places):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                count += 1
            finally:
                os.close(descriptor)
    return count


def _files(places: Iterable[Path]) -> Iterator[Path]:
    for place in places:
        if place.is_file():
            yield place
        for folder, _, names in os.walk(place):
            yield from (path for name in names if (path := Path(folder, name)).is_file())
