"""Context: what a stage is told, and the clock of its device."""

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from neuron.kernels.layered.graph import CudaRecorder
from ops.gpu_check.report import Ceilings


@dataclass(frozen=True, slots=True)
class Context:
    """`small`: shapes that a CPU, or the simulator of CUDA, runs in seconds. `until`: time.monotonic() of the end.

    `notes`: what went another way than it should, for the stage's result.
    """

    device: torch.device
    small: bool
    until: float
    ceilings: Ceilings
    notes: list[str] = field(default_factory=list)

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def left(self) -> float:
        return self.until - time.monotonic()

    def synchronise(self) -> None:
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object], repeats: int = 20) -> float:
        """Median time of `work`, launched as a program does it: for work that takes longer than its launch."""
        repeats = 2 if self.small else repeats
        self._warm(work)
        if not self.cuda:
            return statistics.median(_wall(work) for _ in range(repeats))
        made: Any = torch.cuda.Event
        marks = [made(enable_timing=True) for _ in range(repeats + 1)]
        marks[0].record()
        for mark in marks[1:]:
            work()
            mark.record()
        self.synchronise()
        return float(statistics.median(a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(marks)))

    def recorded_seconds(self, work: Callable[[], object], repeats: int = 20) -> float:
        """Mean time of `work` in a CUDA graph that holds it many times: the device's own, without launches."""
        if not self.cuda:
            return self.seconds(work, repeats)
        self._warm(work)

        def repeated() -> None:
            for _ in range(repeats):
                work()

        try:
            replay = CudaRecorder().record(repeated)
        except Exception as error:
            self.notes.append(f"not recorded in a CUDA graph, timed with its launches: {error}".partition("\n")[0])
            return self.seconds(work, repeats)
        return self.seconds(replay, 5) / repeats

    def _warm(self, work: Callable[[], object]) -> None:
        for _ in range(1 if self.small else 3):
            work()
        self.synchronise()


def share(part: float, whole: float) -> float | None:
    """part / whole, None when the whole is unknown."""
    return round(part / whole, 4) if whole > 0 else None


def _wall(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
