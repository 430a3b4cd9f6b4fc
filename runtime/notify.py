"""Tells the service manager how the daemon is (systemd's notify protocol). Never blocks or raises; needs no systemd."""

import os
import socket
from collections.abc import Callable, Mapping

import anyio

from neuron.runtime.logs import get_logger

_log = get_logger(__name__)

_MAX_STATUS = 400


class Notifier:
    """Sends datagrams to `address` (a path, or "@name" for an abstract socket); does nothing when it is None."""

    def __init__(self, address: str | None, *, watchdog_s: float | None = None) -> None:
        self._address = _socket_address(address)
        #: Seconds after which the manager misses a watchdog beat; None when it watches none.
        self.watchdog_s = watchdog_s
        self.failures = 0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], pid: int | None = None) -> "Notifier":
        """Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID; odd values count as unset."""
        watchdog_s = None
        usec = environment.get("WATCHDOG_USEC", "")
        owner = environment.get("WATCHDOG_PID") or None
        if usec.isascii() and usec.isdigit() and int(usec) > 0 and owner in (None, str(pid or os.getpid())):
            watchdog_s = int(usec) / 1e6
        return cls(environment.get("NOTIFY_SOCKET") or None, watchdog_s=watchdog_s)

    @property
    def enabled(self) -> bool:
        return self._address is not None

    def ready(self, status: str | None = None) -> bool:
        return self._send("READY=1", _status(status))

    def status(self, text: str) -> bool:
        return self._send(_status(text))

    def watchdog(self) -> bool:
        return self._send("WATCHDOG=1")

    def stopping(self, status: str | None = None) -> bool:
        return self._send("STOPPING=1", _status(status))

    def extend_timeout(self, seconds: float) -> bool:
        """Ask for `seconds` more, from now, to start or stop."""
        return self._send(f"EXTEND_TIMEOUT_USEC={max(0, int(seconds * 1e6))}")

    async def beat(self, healthy: Callable[[], bool]) -> None:
        """Send a watchdog beat twice in each interval for as long as `healthy()`; returns at once without a watchdog.

        Runs on the event loop on purpose: a loop that is stuck sends none, and the manager acts.
        """
        if self.watchdog_s is None or not self.enabled:
            return
        while True:
            if healthy():
                self.watchdog()
            await anyio.sleep(self.watchdog_s / 2)

    def _send(self, *lines: str) -> bool:
        """True when the manager's socket took it."""
        if self._address is None:
            return False
        payload = "\n".join(line for line in lines if line).encode("utf-8", "replace")
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)
                sock.connect(self._address)
                sock.send(payload)
        except (OSError, ValueError) as error:
            self.failures += 1
            if self.failures == 1:
                _log.warning("service manager cannot be notified", cause=type(error).__name__)
            return False
        return True


def _socket_address(address: str | None) -> str | None:
    if not address or address[0] not in "/@" or len(address) < 2 or "\0" in address:
        return None
    return "\0" + address[1:] if address[0] == "@" else address


def _status(text: str | None) -> str:
    if not text:
        return ""
    return "STATUS=" + "".join(c if c.isprintable() else " " for c in text)[:_MAX_STATUS]
