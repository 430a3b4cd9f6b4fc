"""The heartbeat: a side thread that tells the daemon each second that the process lives, and how much it has done."""

import threading
from typing import Protocol

from neuron.actors.device.jobs import Beat
from neuron.runtime.errors import LinkClosed, NeuronError

INTERVAL_SECONDS = 1.0


class Sends(Protocol):
    def send(self, message: Beat) -> None: ...


class Heartbeat:
    """`steps` is raised by the job loop for each unit of work: a beat alone does not prove that work goes on."""

    def __init__(self, link: Sends, interval_s: float = INTERVAL_SECONDS) -> None:
        self.steps = 0
        self._link = link
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns once no further beat is sent, or after a moment when the daemon does not read."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(1.0)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self._link.send(Beat(0, self.steps))
            except (LinkClosed, NeuronError):
                return
