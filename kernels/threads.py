"""Team: the threads of one model's compute. Compiled code runs on all of them at once and meets at barriers."""
# mypy: allow-untyped-defs, allow-untyped-decorators

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from neuron.kernels.jit import compiled, inlined
from neuron.kernels.quant.memory import atomic_add, atomic_load, atomic_store, yield_core

#: Spins before a waiting thread offers its core to others.
_SPINS = 4000
#: `adapt` looks at windows of this length, and takes the cores for free when this part of one was spent running.
_WINDOW_NS = 50_000_000
_FREE = 0.85


@inlined
def barrier(state, threads):
    """Wait until all `threads` are here. `state`: address of 16 int64, zeroed once; the counters are a line apart."""
    if threads == 1:
        return
    generation = atomic_load(state + 64)
    if atomic_add(state, 1) == threads - 1:
        atomic_store(state, 0)
        atomic_add(state + 64, 1)
        return
    spins = 0
    while atomic_load(state + 64) == generation:
        spins += 1
        if spins > _SPINS:
            yield_core()


class Contention:
    """How much of its time the calling thread waited for a core, from the kernel's own account (schedstat)."""

    def __init__(self) -> None:
        self._file: int | None = None
        self._thread = 0

    def read(self) -> tuple[int, int] | None:
        """Nanoseconds that this thread ran, and that it was ready but waited; None where they are not told."""
        try:
            if self._thread != threading.get_ident():
                self.close()
                self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
                self._thread = threading.get_ident()
            if self._file is None:
                return None
            ran, waited, _ = os.pread(self._file, 128, 0).split()
            return int(ran), int(waited)
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file, self._thread = None, 0


@compiled
def meet(thread, threads, state):
    """One barrier, for tests."""
    barrier(state, threads)


class Team:
    """Runs `function(thread, threads, *arguments)` on every thread; the caller is thread 0. One caller at a time.

    Functions must be compiled without the GIL and must not raise: a thread that is missing at a barrier stops all.
    """

    def __init__(self, threads: int, read_contention: Callable[[], tuple[int, int] | None] | None = None) -> None:
        self.threads = threads
        #: How many of them `run` uses; `adapt` changes it.
        self.active = threads
        self._meter = Contention()
        self._read_contention = read_contention or self._meter.read
        self._account = (0, 0)
        state = np.zeros(32, dtype=np.int64)
        skip = (-state.ctypes.data % 64) // 8
        self._state = state[skip : skip + 16]
        self._function: Callable[..., Any] | None = None
        self._arguments: tuple[Any, ...] = ()
        self._errors: list[BaseException] = []
        self._starts = [threading.Semaphore(0) for _ in range(threads - 1)]
        self._done = [threading.Semaphore(0) for _ in range(threads - 1)]
        self._workers = [
            threading.Thread(target=self._work, args=(index,), name=f"compute-{index + 1}", daemon=True)
            for index in range(threads - 1)
        ]
        for worker in self._workers:
            worker.start()

    @property
    def barrier_state(self) -> int:
        """Address to hand to `barrier`."""
        return self._state.ctypes.data

    def run(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call on all active threads and wait for all."""
        active = self.active
        if active == 1:
            function(0, 1, *arguments)
            return
        self._function, self._arguments = function, arguments
        for start in self._starts[: active - 1]:
            start.release()
        try:
            function(0, active, *arguments)
        finally:
            for done in self._done[: active - 1]:
                done.acquire()
            self._function, self._arguments = None, ()
        if self._errors:
            error = self._errors.pop()
            self._errors.clear()
            raise error

    def adapt(self) -> bool:
        """Use as many threads as cores are free for them; True when that changed. Called between pieces of work.

        Threads that meet at barriers pay for every neighbour once a barrier: with other work on their cores they are
        slower together than one of them is alone.
        """
        found = None if self.threads == 1 else self._read_contention()
        if found is None:
            return False
        ran, waited = (now - before for now, before in zip(found, self._account, strict=True))
        if ran + waited < _WINDOW_NS:
            return False
        self._account = found
        free = ran / (ran + waited)
        active = self.threads if free > _FREE else max(1, int(self.threads * free + 0.5))
        changed, self.active = active != self.active, active
        return changed

    def close(self) -> None:
        """End the threads."""
        self._function = None
        self._meter.close()
        for start in self._starts:
            start.release()
        for worker in self._workers:
            worker.join()
        self._workers, self._starts, self._done = [], [], []
        self.threads = self.active = 1

    def _work(self, index: int) -> None:
        while True:
            self._starts[index].acquire()
            function = self._function
            if function is None:
                return
            try:
                function(index + 1, self.active, *self._arguments)
            except BaseException as error:
                self._errors.append(error)
            finally:
                self._done[index].release()


def default_threads(limit: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores this process may use (physical ones are not told apart), or the time of so many that its container gets.

    With more threads than that all of them stand still at a barrier while one has used up its time.
    """
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # "max": no limit.
        allowed, period = limit.read_text().split()
        cores = min(cores, -(-int(allowed) // int(period)))
    return max(1, cores)
