"""Recorders in the place of CUDA graphs."""

from collections.abc import Callable


class Again:
    """A recording that is the work itself, run again: whatever it reads must lie in static memory."""

    def __init__(self) -> None:
        self.recorded = 0
        self.replayed = 0

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            work()

        return replay


class Refuses:
    """Recording fails, as it does for work that waits for the device."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("operation not permitted when stream is capturing\nmore of it")
