"""From an exception of a job to the Fault frame that answers it; probes the device where the table asks for it."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from neuron.actors.device.jobs import PEER_DIVERGED, PEER_FAILED, Fault
from neuron.actors.device.worker.classify import Classified, NanLogitsError, RequestFault, classify, describe
from neuron.actors.device.worker.concord import DivergenceError, JoinError, PeerFailedError
from neuron.actors.device.worker.fault_table import Verdict
from neuron.actors.scripted import ScriptError
from neuron.kernels.errors import LoadError
from neuron.kernels.formats.errors import FormatError
from neuron.runtime.errors import NeuronError

#: Codes that name an architecture or build that the device lacks; other load verdicts mean it cannot be used now.
_UNSUPPORTED = {"invalid_device_function", "no_kernel_image", "invalid_kernel_image", "ptx_version"}
_OUT_OF_MEMORY = {"insufficient_memory", "out_of_memory", "insufficient_vram"}


@dataclass(frozen=True, slots=True)
class Failure:
    """What is kept of an exception once it is dropped (its traceback holds device memory)."""

    classified: Classified
    name: str
    message: str
    public: str = ""
    kind: str = ""


def examine(error: BaseException) -> Failure:
    """Everything that is needed of `error`; call it in the except block, then leave the block."""
    classified, message = classify(error), describe(error)
    if isinstance(error, JoinError):  # Whatever the library said of it: this process is well.
        return Failure(Classified(Verdict.HOST, "tp_init"), "tp_init_failed", message)
    if classified.rule not in ("unclassified", "host_error"):
        return Failure(classified, "", message)
    host = Classified(Verdict.HOST, "host_error")
    if isinstance(error, RequestFault):
        return Failure(host, error.name, message)
    if isinstance(error, PeerFailedError):
        return Failure(Classified(Verdict.HOST, PEER_FAILED), "", message)
    if isinstance(error, DivergenceError):
        rule = "tp_divergence" if error.own else PEER_DIVERGED
        return Failure(Classified(Verdict.GROUP, rule), "tp_divergence", message)
    if isinstance(error, NanLogitsError):
        return Failure(Classified(Verdict.HOST, "nan_logits"), "nan_logits", message, kind="nan")
    if isinstance(error, NeuronError):
        return Failure(host, error.code, message, kind="protocol" if error.code == "protocol_error" else "host")
    if isinstance(error, ScriptError):
        return Failure(host, "invalid_model_config", message, str(error), "load")
    if isinstance(error, FormatError):
        return Failure(host, str(error.kind), message, error.message, "load")
    if isinstance(error, LoadError):
        if error.code in _OUT_OF_MEMORY:
            return Failure(Classified(Verdict.OOM, "out_of_memory"), "", message, error.message)
        return Failure(host, error.code, message, error.message, "load")
    return Failure(classified, "", message)


def conclude(job: int, failure: Failure, phase: str, probe: Callable[[], None]) -> Fault:
    """The Fault frame. Call it outside the except block, so that the probe finds the memory free again."""
    verdict, rule = failure.classified.verdict, failure.classified.rule
    if verdict is Verdict.HOST:
        name = failure.name or ("source_unreadable" if phase == "load" and _unreadable(failure) else "internal_error")
        return _fault(job, failure, phase, failure.kind or "host", name)
    if verdict is Verdict.LOAD and phase in ("load", "start"):
        return _fault(
            job, failure, phase, "load", "unsupported_device" if rule in _UNSUPPORTED else "device_unavailable"
        )
    if verdict in (Verdict.OOM, Verdict.PROBE):
        problem = _probe(probe)
        if problem is None:
            out = verdict is Verdict.OOM
            return _fault(
                job, failure, phase, "oom" if out else "host", "insufficient_vram" if out else "internal_error"
            )
        message = f"{failure.message}; probe: {problem}"
        return Fault(job, "device", failure.classified.code, "device_fault", message, True, phase, "", "probe_failed")
    name = failure.name or "device_fault"
    return Fault(
        job, "device", failure.classified.code, name, failure.message, True, phase, "", rule
    )  # FATAL, GROUP, and LOAD errors of a device that worked before.


def _fault(job: int, failure: Failure, phase: str, kind: str, name: str) -> Fault:
    code, rule = failure.classified.code, failure.classified.rule
    return Fault(job, kind, code, name, failure.message, False, phase, failure.public, rule)


def _unreadable(failure: Failure) -> bool:
    return failure.message.startswith(("FileNotFoundError", "PermissionError", "IsADirectoryError", "OSError"))


def _probe(probe: Callable[[], None]) -> str | None:
    """What is wrong with the device; None when it computes right."""
    with contextlib.suppress(MemoryError):
        try:
            probe()
        except MemoryError:
            raise
        except Exception as error:
            return describe(error)
        return None
    return "MemoryError"
