"""Starting a child program. Needs no event loop, so it may come before all else; runtime.process watches it then."""

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

#: The service manager's lines to the daemon alone: a child that used them would speak in its name.
_PARENT_ONLY = frozenset(
    {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"}
)


class Launched(NamedTuple):
    """A running program that nobody watches yet, and our end of the pipe that its stdout and stderr go to."""

    process: subprocess.Popen[bytes]
    output_fd: int

    def abandon(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()
        os.close(self.output_fd)


def launch(
    module: str, *, link_fd: int, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Launched:
    """Start `python -m module --fd link_fd --parent <our pid> *arguments`.

    The child inherits `link_fd` and nothing else. The caller closes its copy of `link_fd` afterwards. `environment`
    stands in place of ours when given. Raises OSError when the start fails, RuntimeError outside the main thread (the
    kernel ends a bound child with the *thread* that started it).
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("child processes are started on the main thread only")
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    command = [sys.executable, "-P", "-m", module, "--fd", str(link_fd), "--parent", str(os.getpid()), *arguments]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=write_fd,
            stderr=write_fd,
            pass_fds=(link_fd,),
            close_fds=True,
            env=_child_environment(os.environ if environment is None else environment),
        )
    except BaseException:
        os.close(read_fd)
        raise
    finally:
        os.close(write_fd)
    return Launched(process, read_fd)


def _child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    # With `-P` and our own import path the child imports from where we do, and never from the directory that the
    # daemon happens to run in.
    kept = {key: value for key, value in environment.items() if key not in _PARENT_ONLY}
    return kept | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
