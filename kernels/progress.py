"""reported: progress of work that compiles, told each second. For loads of either engine and for kernels.warm."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from neuron.kernels.compile_cache import fraction_ready
from neuron.kernels.engine import ReportProgress

_TICK_SECONDS = 1.0
#: Half an hour; what takes longer is taken for stuck.
_MOST_TICKS = 1800


@contextmanager
def reported(progress: ReportProgress) -> Iterator[None]:
    """Progress of stage "compile" each second: a cold start on a busy machine takes minutes and is no standstill."""
    over = threading.Event()

    def tick() -> None:
        # Where nobody listens any more, the load itself will be told.
        with suppress(Exception):
            for _ in range(_MOST_TICKS):
                if over.wait(_TICK_SECONDS):
                    return
                progress("compile", min(fraction_ready(), 0.99))

    progress("compile", 0.0)
    ticker = threading.Thread(target=tick, name="compile-progress", daemon=True)
    ticker.start()
    try:
        yield
    finally:
        over.set()
        ticker.join()
    progress("compile", 1.0)
