"""Failpoints: named places where a test makes the device process misbehave. Inert without both flag and control file.

The flag is the control file's path in Hello, which the daemon sends only when NEURON_FAILPOINTS is set. The file is
read anew whenever it changes, so a test can arm a point while the process runs.
"""

import os
import signal
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import msgspec

from neuron.actors.device.worker.raising import device_error

NAMES = frozenset(
    {
        "worker.start",
        "worker.probe",
        "worker.load.begin",
        "worker.load.progress",
        "worker.load.end",
        "worker.attach",
        "worker.prefill.chunk",
        "worker.decode.step",
        "worker.vision.encode",
        "worker.clear_kv",
        "worker.prefix.save",
        "worker.prefix.restore",
        "worker.prefix.drop",
        "worker.drop",
        "worker.reply",
        "tp.init",
        "tp.agree",
        "tp.collective",
    }
)


class Action(StrEnum):
    """`raise` uses class, code and text; the reply actions act on the frame that answers the job.

    `nan` and `skew` act on the logits row: no usable value, and wrong values that look like usable ones. `skip` leaves
    one collective out, `diverge` has the rank agree to another job than its peers.
    """

    RAISE = "raise"
    SLEEP = "sleep"
    SIGNAL = "signal"
    EXIT = "exit"
    NAN = "nan"
    SKEW = "skew"
    DROP_REPLY = "drop_reply"
    DUPLICATE_REPLY = "duplicate_reply"
    CORRUPT_STAMP = "corrupt_stamp"
    WRONG_JOB = "wrong_job"
    WRONG_VALUE = "wrong_value"
    GARBAGE = "garbage"
    SKIP = "skip"
    DIVERGE = "diverge"


class Armed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the control file (a JSON list). Fires on hits `start` .. `start + count - 1` of its point."""

    point: str
    action: Action
    #: Only in the process of this device; None: in all.
    device: str | None = None
    start: int = 1
    count: int = 1
    #: `raise`: "accelerator", "oom", "cuda_api", "dist", "runtime", "value" (see raising.device_error).
    error: str = "runtime"
    code: int = 0
    text: str = "failpoint"
    seconds: float = 0.0
    signal: int = signal.SIGKILL
    status: int = 3


Hit = Callable[[str], Action | None]
"""Passes a point. Raises, sleeps or ends the process as armed; every other action is returned, for the caller to do."""


def inert(point: str) -> Action | None:
    """What every point is in production."""
    return None


class Failpoints:
    """Reads the control file and acts. One for each device process, used on its main thread."""

    def __init__(self, control: Path, device: str = "cpu") -> None:
        self._control = control
        self._device = device
        self._version: tuple[int, int] | None = None
        self._armed: tuple[Armed, ...] = ()
        self._hits: dict[str, int] = {}

    def hit(self, point: str) -> Action | None:
        if point not in NAMES:
            raise KeyError(point)
        self._refresh()
        self._hits[point] = hits = self._hits.get(point, 0) + 1
        for armed in self._armed:
            if armed.device not in (None, self._device):
                continue
            if armed.point == point and armed.start <= hits < armed.start + armed.count:
                return _act(armed)
        return None

    def _refresh(self) -> None:
        try:
            info = self._control.stat()
            version = (info.st_mtime_ns, info.st_size)
            if version == self._version:
                return
            armed = msgspec.json.decode(self._control.read_bytes(), type=tuple[Armed, ...])
        except (OSError, msgspec.DecodeError):
            armed, version = (), (0, 0)
        self._armed, self._version = armed, version
        self._hits = {}


def failpoints(control: str | None, device: str = "cpu") -> Hit:
    """The points of a process whose Hello named `control`; inert when it named none or the file is not there."""
    if control is None or not Path(control).is_file():
        return inert
    return Failpoints(Path(control), device).hit


def _act(armed: Armed) -> Action | None:
    match armed.action:
        case Action.RAISE:
            raise device_error(armed.error, armed.code, armed.text)
        case Action.SLEEP:
            time.sleep(armed.seconds)
        case Action.SIGNAL:
            os.kill(os.getpid(), armed.signal)
            time.sleep(0.01)  # The signal is delivered before this returns.
        case Action.EXIT:
            os._exit(armed.status)
        case _:
            return armed.action
    return None
