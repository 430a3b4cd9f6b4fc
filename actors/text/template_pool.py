"""TemplatePool: the limited child processes that render templates; killed and replaced when a limit is passed."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque

import anyio
import anyio.to_thread
import msgspec

from neuron.actors.errors import TemplateError, TemplateTimeout, TemplateTooLarge
from neuron.actors.text.template_wire import Disconnected, Failure, RenderJob, RenderReply, receive_frame, send_frame
from neuron.runtime.errors import InternalError, ShuttingDown
from neuron.runtime.logs import get_logger

log = get_logger(__name__)
WALL_SECONDS = 2.0
START_SECONDS = 20.0
_MODULE = "neuron.actors.text.template_child"
#: What a child needs of our environment: where modules are, how text is encoded, which time zone it is.
_ENVIRONMENT = ("PYTHONPATH", "PATH", "LANG", "LC_ALL", "TZ", "VIRTUAL_ENV")
_SENTENCES = {
    Failure.FORBIDDEN: "The model's chat template uses an operation that is not allowed.",
    Failure.UNDEFINED: "The model's chat template needs a value that this conversation does not have.",
    Failure.FAILED: "The model's chat template failed on this conversation.",
}


class TemplateChild:
    """One child process and its link. Not thread-safe: it belongs to one render at a time."""

    def __init__(self) -> None:
        """Start the process; blocks until it is ready. Raises Disconnected, TimeoutError, OSError."""
        ours, theirs = socket.socketpair()
        self._link = ours
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, "--fd", str(theirs.fileno())],
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

    def render(self, payload: bytes) -> RenderReply:
        """Raises TimeoutError past the wall clock, Disconnected when the child is gone."""
        self._link.settimeout(WALL_SECONDS)
        try:
            send_frame(self._link, payload)
            return msgspec.msgpack.decode(receive_frame(self._link), type=RenderReply)
        except TimeoutError:
            raise
        except (OSError, msgspec.MsgspecError) as error:
            raise Disconnected from error

    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> int:
        """End the process; returns its exit status (negative: the signal that had ended it)."""
        self._link.close()
        self._process.kill()
        return self._process.wait()


class TemplatePool:
    """At most `size` children at once. All methods may be called from any task of one event loop."""

    def __init__(self, size: int = 2) -> None:
        self._size = size
        self._limiter: anyio.CapacityLimiter | None = None
        self._idle: deque[TemplateChild] = deque()
        self._busy: set[TemplateChild] = set()
        self._lock = threading.Lock()
        self._closed = False

    async def start(self) -> None:
        """Start one child ahead of the first request. Failing to is logged, and tried again by the request."""
        try:
            child = await anyio.to_thread.run_sync(TemplateChild)
        except (Disconnected, OSError) as error:
            log.warning("the template process did not start", reason=type(error).__name__)
            return
        self._give_back(child)

    async def render(self, source: str, variables: bytes, *, max_bytes: int) -> str:
        """The rendered text. `variables` is a JSON object.

        Raises TemplateError, TemplateTimeout, TemplateTooLarge, ShuttingDown, InternalError (child lost).
        """
        payload = msgspec.msgpack.encode(RenderJob(source=source, variables=variables, max_bytes=max_bytes))
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(self._size)
        reply = await anyio.to_thread.run_sync(self._render, payload, limiter=self._limiter)
        if reply.text is None:
            raise _error(reply)
        return reply.text

    def close(self) -> None:
        """End all idle children; those at work end with their render."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, deque()
        for child in idle:
            child.kill()

    def pids(self) -> list[int]:
        """Process ids of all children, those at work first."""
        with self._lock:
            return [child.pid for child in (*self._busy, *self._idle)]

    def _render(self, payload: bytes) -> RenderReply:
        child = self._take()
        try:
            return self._attempt(child, payload)
        finally:
            with self._lock:
                self._busy.discard(child)

    def _attempt(self, child: TemplateChild, payload: bytes) -> RenderReply:
        try:
            reply = child.render(payload)
        except TimeoutError as error:
            child.kill()
            raise TemplateTimeout("The model's chat template took too long to render.") from error
        except Disconnected as error:
            raise _lost(child.kill()) from error
        except BaseException:
            child.kill()
            raise
        if reply.failure is Failure.TOO_LARGE:
            child.kill()
        else:
            self._give_back(child)
        return reply

    def _take(self) -> TemplateChild:
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
            child = TemplateChild()
        except (Disconnected, OSError) as error:
            raise InternalError("The template process could not be started.") from error
        with self._lock:
            self._busy.add(child)
        return child

    def _give_back(self, child: TemplateChild) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(child)
                return
        child.kill()


def _lost(status: int) -> TemplateTimeout | TemplateTooLarge | InternalError:
    """What the end of a child means: the kernel's time limit, memory, or something from outside."""
    log.warning("the template process ended", status=status)
    if status == -signal.SIGXCPU:
        return TemplateTimeout("The model's chat template took too long to render.")
    if status in (-signal.SIGSEGV, -signal.SIGABRT, 1):
        return TemplateTooLarge("The model's chat template needs too much memory.")
    return InternalError("The template process ended unexpectedly.")


def _error(reply: RenderReply) -> TemplateError | TemplateTooLarge:
    if reply.failure is Failure.TOO_LARGE:
        return TemplateTooLarge("The model's chat template builds a prompt that is too large.")
    if reply.failure is Failure.REFUSED:
        return TemplateError(reply.detail or "The model's chat template refused this conversation.")
    if reply.failure is Failure.SYNTAX:
        return TemplateError(f"The model's chat template has a syntax error in line {reply.detail}.")
    return TemplateError(_SENTENCES[reply.failure or Failure.FAILED])
