"""The host as a device: processor name and memory in MiB, read from /proc and the cgroup. No device library."""

import functools
import platform
from pathlib import Path

import msgspec

MIB = 1 << 20


class HostMemory(msgspec.Struct, frozen=True):
    """MiB. `total_mb` is the cgroup's limit where one is set."""

    total_mb: int
    free_mb: int

    @property
    def used_mb(self) -> int:
        return max(0, self.total_mb - self.free_mb)


@functools.cache
def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    try:
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "CPU"


def host_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> HostMemory:
    """What the host, or the cgroup when it allows less, has in all and has left."""
    total, free = _meminfo(meminfo)
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if limit is not None and used is not None and 0 < limit < total:
        # Pages of the file cache count as used there, but are given back on demand.
        reclaimable = _stat(cgroup / "memory.stat", "inactive_file")
        free = min(free, max(0, limit - used + reclaimable))
        total = limit
    return HostMemory(total // MIB, free // MIB)


def _meminfo(path: Path) -> tuple[int, int]:
    """(total, available) bytes; zeros when the file cannot be read."""
    values = {"MemTotal": 0, "MemAvailable": 0}
    try:
        for line in path.read_text().splitlines():
            key, _, rest = line.partition(":")
            if key in values:
                values[key] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return values["MemTotal"], values["MemAvailable"]


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _stat(path: Path, name: str) -> int:
    try:
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    except (OSError, ValueError):
        pass
    return 0
