"""Child processes of the daemon: started afresh, never forked; watched by pidfd, reaped, their stderr logged."""

import asyncio
import contextvars
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Self

import anyio
import msgspec

from neuron.runtime import logs
from neuron.runtime.launch import Launched, launch

_MAX_LINE_BYTES = 64 * 1024
_READ_BYTES = 64 * 1024
_DRAIN_BYTES = 1024 * 1024


class ExitStatus(msgspec.Struct, frozen=True):
    """How a process ended: `code` of a normal exit, or the `signal` that killed it ("SIGKILL"), never both."""

    code: int | None
    signal: str | None

    def __str__(self) -> str:
        return f"signal {self.signal}" if self.signal is not None else f"exit status {self.code}"


class StderrPump:
    """Reads a child's stderr on the event loop, line by line, into the log."""

    def __init__(self, fd: int, name: str, pid: int) -> None:
        os.set_blocking(fd, False)
        self._fd: int | None = fd
        self._name = name
        self._pid = pid
        self._partial = b""
        self._loop = asyncio.get_running_loop()
        # What a child says belongs to no request, although one may have had it started.
        contextvars.Context().run(self._loop.add_reader, fd, self._read)

    def _read(self) -> int:
        if self._fd is None:
            return 0
        try:
            data = os.read(self._fd, _READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            data = b""
        if not data:
            self.close()
            return 0
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._take(line)
        while len(self._partial) > _MAX_LINE_BYTES:
            self._take(self._partial[:_MAX_LINE_BYTES])
            self._partial = self._partial[_MAX_LINE_BYTES:]
        return len(data)

    def _take(self, line: bytes) -> None:
        if line.strip():
            logs.relay_child_line(line, worker=self._name, worker_pid=self._pid)

    def drain_and_close(self) -> None:
        """Take what the dead child left. Does not wait for the end of the pipe, which a grandchild may hold open."""
        left = _DRAIN_BYTES
        while left > 0 and (count := self._read()):
            left -= count
        self.close()

    def close(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            self._loop.remove_reader(fd)
            os.close(fd)
            if self._partial:
                self._take(self._partial)
                self._partial = b""


class ChildProcess:
    """One running child. Made by `spawn` or `watch`; everything else on the same event loop."""

    def __init__(self, process: subprocess.Popen[bytes], stderr_fd: int, name: str) -> None:
        self._process = process
        self.name = name
        self._exited = anyio.Event()
        self._status: ExitStatus | None = None
        self._loop = asyncio.get_running_loop()
        self._pidfd = os.pidfd_open(process.pid)
        self._pump = StderrPump(stderr_fd, name, process.pid)
        # The pidfd alone tells of the end: a grandchild can hold the pipe and the link open for long after.
        self._loop.add_reader(self._pidfd, self._reap)

    @classmethod
    async def spawn(
        cls,
        module: str,
        *,
        link_fd: int,
        name: str,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Self:
        """Start `python -m module` as runtime.launch does, whose errors it raises; its output goes to our log."""
        return cls.watch(launch(module, link_fd=link_fd, arguments=arguments, environment=environment), name)

    @classmethod
    def watch(cls, launched: Launched, name: str) -> Self:
        """Take a program that was started before. It is ended when it cannot be watched."""
        try:
            return cls(launched.process, launched.output_fd, name)
        except BaseException:  # no descriptor left to watch it with
            launched.abandon()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> ExitStatus | None:
        """None while it runs."""
        return self._status

    async def wait(self) -> ExitStatus:
        """Any number of callers may wait."""
        await self._exited.wait()
        assert self._status is not None
        return self._status

    def kill(self) -> None:
        """SIGKILL, which ends stopped processes too; nothing happens when it has ended."""
        # Only `_reap` frees the pid, so it cannot name another process here.
        if self._status is None:
            try:
                os.kill(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def _reap(self) -> None:
        code = self._process.poll()
        if code is None:
            return
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pump.drain_and_close()
        self._status = ExitStatus(code, None) if code >= 0 else ExitStatus(None, _signal_name(-code))
        self._exited.set()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
