"""Team: the threads of one model's compute. Compiled code runs on all of them at once and meets at barriers."""
# mypy: allow-untyped-defs, allow-untyped-decorators

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from neuron.kernels.jit import compiled, inlined
from neuron.kernels.quant.memory import atomic_add, atomic_load, atomic_store, yield_core

#: Spins before a waiting thread offers its core to others.
_SPINS = 4000


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


@compiled
def meet(thread, threads, state):
    """One barrier, for tests."""
    barrier(state, threads)


class Team:
    """Runs `function(thread, threads, *arguments)` on every thread; the caller is thread 0. One caller at a time.

    Functions must be compiled without the GIL and must not raise: a thread that is missing at a barrier stops all.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
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
        """Call on all threads and wait for all."""
        if self.threads == 1:
            function(0, 1, *arguments)
            return
        self._function, self._arguments = function, arguments
        for start in self._starts:
            start.release()
        try:
            function(0, self.threads, *arguments)
        finally:
            for done in self._done:
                done.acquire()
            self._function, self._arguments = None, ()
        if self._errors:
            error = self._errors.pop()
            self._errors.clear()
            raise error

    def close(self) -> None:
        """End the threads."""
        self._function = None
        for start in self._starts:
            start.release()
        for worker in self._workers:
            worker.join()
        self._workers, self._starts, self._done, self.threads = [], [], [], 1

    def _work(self, index: int) -> None:
        while True:
            self._starts[index].acquire()
            function = self._function
            if function is None:
                return
            try:
                function(index + 1, len(self._workers) + 1, *self._arguments)
            except BaseException as error:
                self._errors.append(error)
            finally:
                self._done[index].release()


def default_threads() -> int:
    """Cores this process may use (physical ones are not told apart)."""
    return max(1, len(os.sched_getaffinity(0)))
