"""The daemon with stopwatches at its links and its lock. Started by ops.bench.overhead alone.

A line on stdin: the figures so far go to stdout as one line of JSON, and begin anew.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from neuron.actors import model
from neuron.actors.device import actor
from neuron.actors.device.jobs import ForwardLogits, Logits
from neuron.actors.turnstile import Ticket, TicketState, Turnstile
from neuron.api.cli import main
from neuron.runtime.link import In, Link


class Figures:
    """Seconds."""

    def __init__(self) -> None:
        #: From the bytes that announce a row being readable to the next step being written.
        self.row_to_step: list[float] = []
        #: From the lock's release to the next request's first job being written.
        self.release_to_job: list[float] = []
        self.released_at: float | None = None

    def take(self) -> dict[str, list[float]]:
        found = {"row_to_step": self.row_to_step, "release_to_job": self.release_to_job}
        self.row_to_step, self.release_to_job = [], []
        return found


FIGURES = Figures()


class TimedLink(Link[In]):
    _read_at = 0.0
    _row_at: float | None = None

    async def run(self, on_message: Callable[[In], None]) -> None:
        def noted(message: In) -> None:
            if isinstance(message, Logits):
                self._row_at = self._read_at
            on_message(message)

        await super().run(noted)

    def _read(self) -> None:
        self._read_at = time.perf_counter()
        super()._read()

    def post(self, message: Any) -> None:
        super().post(message)
        now = time.perf_counter()
        if self._row_at is not None and isinstance(message, ForwardLogits):
            FIGURES.row_to_step.append(now - self._row_at)
        if FIGURES.released_at is not None:
            FIGURES.release_to_job.append(now - FIGURES.released_at)
        self._row_at = FIGURES.released_at = None


class TimedTurnstile(Turnstile):
    def leave(self, ticket: Ticket) -> None:
        hands_on = ticket.state is TicketState.RUNNING and bool(self._waiting)
        if hands_on:
            FIGURES.released_at = time.perf_counter()
        super().leave(ticket)


def answer() -> None:
    for _ in sys.stdin:
        sys.stdout.write(json.dumps(FIGURES.take()) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    actor.Link = TimedLink  # type: ignore[misc,attr-defined]
    actor.WORKER_MODULE = "ops.bench.overhead_worker"
    model.Turnstile = TimedTurnstile  # type: ignore[misc,attr-defined]
    threading.Thread(target=answer, daemon=True).start()
    main()
