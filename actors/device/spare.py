"""Spare: a device process that is started before the daemon has its own imports behind it, and adopted later.

Importing the device libraries takes longer than all else at start-up; this way it begins first. Imports nothing heavy.
"""

import contextlib
import socket

from neuron.runtime.launch import Launched, launch

WORKER_MODULE = "neuron.actors.device.worker"
#: The process imports the libraries before it greets: what comes is a model with weights.
WITH_LIBRARIES = "--libraries"


def worker_arguments(device_id: str, level: str) -> tuple[str, ...]:
    """`level`: of its log, as the configuration names it."""
    return ("--device", device_id, "--log-level", level.lower())


class Spare:
    """Belongs to the main thread. Taken once by the actor of `device_id`, or discarded."""

    def __init__(self, device_id: str, level: str) -> None:
        """Raises OSError when it cannot be started."""
        self.device_id = device_id
        self._link, theirs = socket.socketpair()
        try:
            arguments = (*worker_arguments(device_id, level), WITH_LIBRARIES)
            launched = launch(WORKER_MODULE, link_fd=theirs.fileno(), arguments=arguments)
        except BaseException:
            self._link.close()
            raise
        finally:
            theirs.close()
        self._launched: Launched | None = launched
        self.pid = launched.process.pid

    @property
    def alive(self) -> bool:
        """Not taken, and it has not ended by itself."""
        return self._launched is not None and self._launched.process.poll() is None

    @property
    def taken(self) -> bool:
        return self._launched is None

    def take(self) -> tuple[Launched, socket.socket]:
        """The program, and our end of its link. Call once."""
        launched, self._launched = self._launched, None
        assert launched is not None
        return launched, self._link

    def discard(self) -> None:
        """End it unless it was taken."""
        if self._launched is not None:
            launched, link = self.take()
            link.close()
            with contextlib.suppress(OSError):
                launched.abandon()
