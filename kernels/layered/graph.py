"""GraphedStep: a piece of device work that is run once, recorded at its second use, and replayed from then on."""

from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

import torch


class StepState(Enum):
    COLD = auto()
    """Never run: what it launches may still have to be compiled."""
    WARM = auto()
    RECORDED = auto()
    EAGER = auto()
    """Recording failed, or nothing records here: run as it is, every time."""


class Recorder(Protocol):
    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record what `work` launches, without running it; the result runs it again. Raises what recording raises."""


class CudaRecorder:
    """CUDA graphs. `work` must have run before, must allocate only through torch, and wait for nothing."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            # Other threads of the process may ask the driver for figures meanwhile.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                work()
        except BaseException:
            # A capture that fails to end leaves its own stream as the current one.
            torch.cuda.set_stream(stream)
            raise
        return graph.replay


class GraphedStep:
    """`work` reads and writes the same memory each time. `reason`: why it is not recorded, if that was tried."""

    def __init__(self, work: Callable[[], None], recorder: Recorder | None) -> None:
        self._work, self._recorder = work, recorder
        self._replay: Callable[[], None] | None = None
        self.state = StepState.COLD if recorder is not None else StepState.EAGER
        self.reason: str | None = None

    def run(self) -> None:
        if self.state is StepState.WARM:
            self._record()
        if self._replay is not None:
            self._replay()
            return
        self._work()
        if self.state is StepState.COLD:
            self.state = StepState.WARM

    def close(self) -> None:
        """Let go of the recording and of everything that the work holds. It must not be run again."""
        self._replay, self._work = None, _nothing

    def _record(self) -> None:
        assert self._recorder is not None
        try:
            self._replay = self._recorder.record(self._work)
        except Exception as error:
            self.state, self.reason = StepState.EAGER, str(error).partition("\n")[0]
            return
        self.state = StepState.RECORDED


def _nothing() -> None:
    pass
