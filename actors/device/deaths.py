"""Why a device process ended: the first cause, the error its callers get, and the record that models keep."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from neuron.actors.daemon import PoisonRecord
from neuron.actors.device.job_table import ErrorFactory
from neuron.actors.device.jobs import ECHOES, Fault
from neuron.actors.device.replies import error_from_fault
from neuron.runtime.errors import NeuronError, ProtocolError, ShuttingDown, WorkerDied, WorkerUnresponsive

_CLASS = re.compile(r"^[A-Za-z_]\w*: ")
_PLACE = re.compile(r"\S*/\S*|0x[0-9a-fA-F]+")


@dataclass(frozen=True, slots=True)
class Death:
    """`error` makes what each waiting and later caller gets; `expected` deaths poison nothing."""

    reason: str
    error: ErrorFactory
    code: int = 0
    phase: str = ""
    expected: bool = False
    #: Counts toward the limit of restarts (a device that is not there is no crash).
    crash: bool = True
    #: It only tells that another rank of its group is gone.
    echo: bool = False
    #: It went without a word: a signal or an exit of its own.
    exited: bool = False

    def record(self, exit_status: str | None, req_id: str | None = None) -> PoisonRecord:
        """The public record; `reason` holds no path and no address."""
        return PoisonRecord(
            reason=self.reason,
            code=self.code,
            phase=self.phase,
            req_id=req_id,
            at=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            exit_status=exit_status,
        )


def device_fault(fault: Fault) -> Death:
    text = _CLASS.sub("", fault.message.strip().partition("\n")[0].partition(" <- ")[0])
    text = _PLACE.sub("...", text)[:160]
    reason = fault.reason or fault.name
    return Death(
        f"{reason}: {text}" if text else reason,
        lambda: error_from_fault(fault),
        fault.code,
        fault.phase,
        crash=fault.name not in ("device_unavailable", "unsupported_device"),
        echo=fault.reason.startswith(ECHOES),
    )


def exited(exit_status: str, signal: str | None, phase: str) -> Death:
    """The process ended by itself. SIGBUS is a lost file or shared memory, not the device."""
    reason = "io_fault" if signal == "SIGBUS" else "worker_exited"

    def error() -> NeuronError:
        text = "The device process ended while this request ran."
        return WorkerDied(text) if signal is None else WorkerDied(text, signal=signal)

    return Death(f"{reason}: {exit_status}", error, 0, phase, exited=True)


def unresponsive(limit_s: float, phase: str) -> Death:
    return Death(
        "worker_unresponsive",
        lambda: WorkerUnresponsive(f"The device process did not answer within {limit_s:g} s and was ended."),
        0,
        phase,
    )


def protocol(problem: NeuronError, phase: str) -> Death:
    return Death("protocol_error", lambda: ProtocolError(problem.message), 0, phase)


def killed(reason: str, error: ErrorFactory, phase: str, *, crash: bool = True) -> Death:
    """Ended on purpose although it worked, for instance because another rank of its group failed."""
    return Death(reason, error, 0, phase, crash=crash)


def stopped() -> Death:
    return Death("stopped", lambda: ShuttingDown("The device process is stopping."), expected=True)
