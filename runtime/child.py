"""The child's side of `runtime.process`: what a spawned process does in its first lines. Imports nothing heavy."""

import argparse
import ctypes
import os
import select
import signal
import socket
import threading
from collections.abc import Sequence
from typing import NamedTuple

EXIT_ORPHAN = 83
"""Exit status of a child whose parent is gone."""

_PR_SET_PDEATHSIG = 1


class ChildArguments(NamedTuple):
    fd: int
    parent: int


def parse_child_arguments(argv: Sequence[str]) -> ChildArguments:
    """Read `--fd N --parent PID` (what ChildProcess.spawn passes); other arguments are the child's own matter."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    known, _ = parser.parse_known_args(argv)
    return ChildArguments(known.fd, known.parent)


def link_socket(fd: int) -> socket.socket:
    """The inherited end of the link; not inherited further by what the child itself starts."""
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    return sock


def bind_to_parent(parent_pid: int) -> None:
    """Die (SIGKILL from the kernel) when the parent's main thread ends. Call first of all, on the main thread.

    A parent that ended before this call is seen by its pid. This is the belt for a child that holds the GIL in native
    code; `exit_when_closed` is the other one.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(EXIT_ORPHAN)


def exit_when_closed(sock: socket.socket, exit_code: int = EXIT_ORPHAN) -> threading.Thread:
    """Watch the link from a thread of its own and end this process at once when the parent's end closes.

    Reads nothing, so the link's reader misses nothing; a main thread deep in a long computation does not delay it.
    """
    watched = sock.dup()

    def watch() -> None:
        hangup = select.poll()
        hangup.register(watched.fileno(), select.POLLRDHUP)
        while not hangup.poll():
            pass
        os._exit(exit_code)

    thread = threading.Thread(target=watch, name="parent-watch", daemon=True)
    thread.start()
    return thread


def volunteer_for_oom(score: int = 500) -> None:
    """Ask the kernel, when memory runs out, to end this process before its parent. `score`: 0 to 1000."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(score))
    except OSError:
        pass  # a hint only


def leave_signals_to_parent() -> None:
    """Ignore the terminal's Ctrl-C and hang-up, which reach the whole group: the parent decides when a child ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
