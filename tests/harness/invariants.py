"""What must be as it was after every fault: children, zombies, descriptors, threads, shared memory."""

import gc
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from neuron.runtime import shm


@dataclass(frozen=True, slots=True)
class Resources:
    """A snapshot of what this process holds."""

    fds: int
    threads: int
    children: frozenset[int]
    segments: frozenset[str]

    @classmethod
    def now(cls) -> "Resources":
        mine = f"{shm.PREFIX}-{os.getpid()}-"
        return cls(
            fds=len(os.listdir("/proc/self/fd")),
            threads=threading.active_count(),
            children=frozenset(children(os.getpid())),
            segments=frozenset(name for name in os.listdir(shm.DIRECTORY) if name.startswith(mine)),
        )

    def differences(self, before: "Resources") -> list[str]:
        """What is there in addition to `before`, in words; empty when nothing leaked."""
        found = []
        if self.fds > before.fds:
            found.append(f"{self.fds - before.fds} descriptors more")
        if self.threads > before.threads:
            found.append(f"{self.threads - before.threads} threads more")
        if left := self.children - before.children:
            found.append(f"children left: {sorted(left)}")
        if segments := self.segments - before.segments:
            found.append(f"segments left: {sorted(segments)}")
        return found


def children(pid: int) -> list[int]:
    """Pids of the direct children, zombies included."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
    return found


def assert_nothing_left(before: Resources, within_s: float = 5.0) -> None:
    """Fails when something is still held after `within_s` seconds (the kernel closes some things a moment later)."""
    deadline = time.monotonic() + within_s
    while (found := Resources.now().differences(before)) and time.monotonic() < deadline:
        gc.collect()  # A socket held by a cycle of garbage is closed late, not leaked.
        time.sleep(0.02)
    assert not found, "; ".join(found)


def gone(pid: int) -> bool:
    """True when no process, and no zombie, has this pid."""
    return not Path(f"/proc/{pid}").exists()
