"""What this machine can do: memory read bandwidth through a quantised product, and the library's bf16 matrix rate."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from neuron.kernels.jit import compiled
from neuron.kernels.quant.rows import dot_f32
from neuron.kernels.threads import Team


@dataclass(frozen=True, slots=True)
class Machine:
    threads: int
    #: bytes a second, all threads reading
    bandwidth: float
    #: bfloat16 floating-point operations a second at 512 x 576 x 1536
    matrix_rate: float


@compiled
def _read(thread, threads, address, size, vector, length):  # type: ignore[no-untyped-def]
    """Read this thread's part of `size` bytes, as rows of `length` floats."""
    rows = size // (4 * length)
    total = 0.0
    for row in range(rows * thread // threads, rows * (thread + 1) // threads):
        total += dot_f32(address + row * 4 * length, vector, 0, length)
    return total


def measure(team: Team, megabytes: int = 256) -> Machine:
    """Best of several runs of each: these are ceilings."""
    data = np.ones(megabytes << 18, dtype=np.float32)
    vector = np.ones(4096, dtype=np.float32)
    read = _best(lambda: team.run(_read, data.ctypes.data, data.nbytes, vector.ctypes.data, len(vector)))
    a, b = torch.ones(512, 576, dtype=torch.bfloat16), torch.ones(1536, 576, dtype=torch.bfloat16)
    with torch.inference_mode():
        product = _best(lambda: torch.nn.functional.linear(a, b), repeats=40)
    return Machine(team.threads, data.nbytes / read, 2 * 512 * 576 * 1536 / product)


def _best(work: Callable[[], object], repeats: int = 8) -> float:
    work()
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)


def median(values: list[float]) -> float:
    return statistics.median(values)
