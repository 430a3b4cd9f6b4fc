"""The only writer of log lines: a bounded queue and one thread, so that a stuck reader of stderr stops nobody."""

import os
import threading
import time
from collections import deque

MAX_QUEUED_BYTES = 8 * 1024 * 1024
MAX_LINE_BYTES = 64 * 1024
"""Longest line written, in bytes; a longer one is refused here (the renderer shortens before)."""


class LineWriter:
    """Writes lines to a file descriptor from a daemon thread.

    A line that finds the queue full, or that the descriptor refuses (closed pipe, full disk), is dropped and counted.
    Nothing is retried, so a broken descriptor costs one failed call a line.
    """

    def __init__(self, fd: int, max_queued_bytes: int = MAX_QUEUED_BYTES) -> None:
        self._fd = fd
        self._max_queued_bytes = max_queued_bytes
        self._lines: deque[bytes] = deque()
        self._queued_bytes = 0
        self._dropped = 0
        self._busy = False
        self._stopping = False
        # Reentrant: a signal handler that logs may interrupt a `write` of the same thread.
        self._changed = threading.Condition(threading.RLock())
        self._thread: threading.Thread | None = None

    @property
    def dropped(self) -> int:
        """Lines lost since the start."""
        return self._dropped

    @property
    def busy(self) -> bool:
        """More than half full."""
        return self._queued_bytes > self._max_queued_bytes // 2

    def write(self, line: bytes) -> None:
        """Queue one line, without its line feed. Never blocks, never raises."""
        with self._changed:
            if self._stopping or len(line) > MAX_LINE_BYTES or self._queued_bytes + len(line) > self._max_queued_bytes:
                self._dropped += 1
                return
            self._lines.append(line)
            self._queued_bytes += len(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # no threads left, or the interpreter is ending
                    self._thread = None
                    self._lines.pop()
                    self._queued_bytes -= len(line)
                    self._put(line + b"\n")
                    return
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything queued is written or lost; False when the time was not enough."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            if self._thread is None or not self._thread.is_alive():
                return not self._lines
            while self._lines or self._busy:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def close(self, timeout_s: float) -> None:
        """Flush, then end the thread. Lines written later are lost."""
        self.flush(timeout_s)
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                while not self._lines:
                    if self._stopping:
                        return
                    self._changed.wait()
                line = self._lines.popleft()
                self._queued_bytes -= len(line)
                self._busy = True
            self._put(line + b"\n")

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:  # someone made the descriptor non-blocking; wait our turn in this thread
                time.sleep(0.01)
            except OSError:
                with self._changed:
                    self._dropped += 1
                return
