"""How the daemon ends: stop signals, and a deadman for the case that the orderly end itself hangs."""

import asyncio
import faulthandler
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import IO, Any, Self

from neuron.runtime.logs import flush_logs, get_logger

_log = get_logger(__name__)

EXIT_DEADMAN = 70
"""Exit status when the orderly end took too long."""

_STOP = (signal.SIGTERM, signal.SIGINT)


def exit_now(code: int, flush_s: float = 0.5) -> None:
    """Leave without waiting for threads (one may sit in native code); queued log lines get `flush_s` seconds."""
    flush_logs(flush_s)
    os._exit(code)


class StopSignals:
    """Within the `with` block the first SIGTERM or SIGINT calls `on_stop` on the event loop, the second ends us.

    The second exits with 128 + the signal's number, at once, also when the loop is stuck in Python code. SIGHUP is
    ignored. Enter on the main thread, inside the running loop.
    """

    def __init__(self, on_stop: Callable[[str], None], *, leave: Callable[[int], None] = exit_now) -> None:
        self._on_stop = on_stop
        self._leave = leave
        self._loop: asyncio.AbstractEventLoop | None = None
        self._before: dict[signal.Signals, Any] = {}
        #: Name of the first stop signal.
        self.received: str | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        for number in _STOP:
            # Not loop.add_signal_handler: that one needs a loop that turns.
            self._before[number] = signal.signal(number, self._handle)
        self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self.received is not None:
            _log.warning("second stop signal, leaving at once", signal=name)
            self._leave(128 + number)
            return
        self.received = name
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._on_stop, name)


class Deadman:
    """Ends the process with `exit_code` when not disarmed within `seconds`. For the time after a stop was asked.

    A thread does it, with a last log line; when native code holds the interpreter so that no thread can run, a timer
    outside the interpreter does it two seconds later, with status 1. One at a time in a process.
    """

    def __init__(
        self, seconds: float, exit_code: int = EXIT_DEADMAN, *, describe: Callable[[], str] = lambda: ""
    ) -> None:
        self.seconds = seconds
        self._exit_code = exit_code
        self._describe = describe
        self._disarmed = threading.Event()
        self._thread: threading.Thread | None = None
        self._null: IO[str] | None = None

    def arm(self) -> None:
        if self._thread is None:
            self._null = open(os.devnull, "w", encoding="ascii")
            faulthandler.dump_traceback_later(self.seconds + 2.0, exit=True, file=self._null)
            self._thread = threading.Thread(target=self._watch, name="deadman", daemon=True)
            self._thread.start()

    def disarm(self) -> None:
        self._disarmed.set()
        if self._null is not None:
            faulthandler.cancel_dump_traceback_later()
            self._null.close()
            self._null = None

    def __enter__(self) -> Self:
        self.arm()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disarm()

    def _watch(self) -> None:
        if self._disarmed.wait(self.seconds):
            return
        try:
            stuck = self._describe()
        except Exception:
            stuck = "unknown"
        _log.critical("the orderly end hangs, leaving", after_s=self.seconds, stuck=stuck, exit_status=self._exit_code)
        exit_now(self._exit_code)
