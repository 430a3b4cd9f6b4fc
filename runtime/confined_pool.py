"""ConfinedPool: the daemon's side of confined helper processes; killed when a limit is passed, replaced when needed."""

import os
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable

from neuron.runtime.confined import Disconnected, receive_frame, send_frame
from neuron.runtime.errors import InternalError, ShuttingDown
from neuron.runtime.logs import get_logger
from neuron.runtime.workers import Workers

log = get_logger(__name__)
START_SECONDS = 20.0
#: What a child needs of our environment: how text is encoded, which time zone it is.
_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "TZ", "VIRTUAL_ENV")


class ChildLost(Exception):
    """The child ended while it worked; `status` is its exit status (negative: the signal that ended it)."""

    def __init__(self, status: int) -> None:
        super().__init__(f"helper process ended with status {status}")
        self.status = status


class ConfinedChild:
    """One child process and its link. Not thread-safe: it belongs to one exchange at a time."""

    def __init__(self, module: str) -> None:
        """Start `python -m module --fd N`; blocks until its first frame says that it is confined.

        Raises Disconnected, TimeoutError, OSError.
        """
        ours, theirs = socket.socketpair()
        self._link = ours
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        # With `-P` and our own import path it imports from where we do, never from the directory the daemon runs in.
        environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, "--fd", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        try:
            self._link.settimeout(START_SECONDS)
            receive_frame(self._link)
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def exchange(self, payload: bytes, seconds: float) -> bytearray:
        """Raises TimeoutError past the wall clock, Disconnected when the child is gone."""
        self._link.settimeout(seconds)
        try:
            send_frame(self._link, payload)
            return receive_frame(self._link)
        except TimeoutError:
            raise
        except OSError as error:
            raise Disconnected from error

    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> int:
        """End the process; returns its exit status (negative: the signal that had ended it)."""
        self._link.close()
        self._process.kill()
        return self._process.wait()


class ConfinedPool:
    """At most `size` children of `module` at once. All methods may be called from any task of one event loop."""

    def __init__(self, module: str, size: int = 2) -> None:
        self._module = module
        #: One thread for each child.
        self._workers = Workers(size, "helpers")
        self._idle: deque[ConfinedChild] = deque()
        self._busy: set[ConfinedChild] = set()
        self._lock = threading.Lock()
        self._closed = False

    async def start(self) -> None:
        """Start one child ahead of the first request. Failing to is logged, and tried again by the request."""
        try:
            await self._workers.run(self._start_idle)
        except (Disconnected, OSError, ShuttingDown) as error:
            log.warning("a helper process did not start", module=self._module, reason=type(error).__name__)

    async def exchange(
        self, payload: bytes, *, seconds: float, healthy: Callable[[bytearray], bool] = bool
    ) -> bytearray:
        """The answer of some child. One whose answer is not `healthy` is ended.

        Raises TimeoutError (the child is ended), ChildLost, ShuttingDown, InternalError (none could be started).
        """
        return await self._workers.run(self._exchange, payload, seconds, healthy)

    def close(self) -> None:
        """End all idle children; those at work end with their work."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, deque()
        self._workers.close()
        for child in idle:
            child.kill()

    def pids(self) -> list[int]:
        """Process ids of all children, those at work first."""
        with self._lock:
            return [child.pid for child in (*self._busy, *self._idle)]

    def _start_idle(self) -> None:
        self._give_back(ConfinedChild(self._module))

    def _exchange(self, payload: bytes, seconds: float, healthy: Callable[[bytearray], bool]) -> bytearray:
        child = self._take()
        try:
            answer = child.exchange(payload, seconds)
            if healthy(answer):
                self._give_back(child)
            else:
                child.kill()
            return answer
        except Disconnected as error:
            status = child.kill()
            log.warning("a helper process ended", module=self._module, status=status)
            raise ChildLost(status) from error
        except BaseException:
            child.kill()
            raise
        finally:
            with self._lock:
                self._busy.discard(child)

    def _take(self) -> ConfinedChild:
        with self._lock:
            if self._closed:
                raise ShuttingDown("The daemon is shutting down.")
            while self._idle:
                child = self._idle.pop()
                if child.alive():
                    self._busy.add(child)
                    return child
                child.kill()
        try:
            child = ConfinedChild(self._module)
        except (Disconnected, OSError) as error:
            raise InternalError("A helper process could not be started.") from error
        with self._lock:
            self._busy.add(child)
        return child

    def _give_back(self, child: ConfinedChild) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(child)
                return
        child.kill()
