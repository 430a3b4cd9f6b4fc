"""From Fault frames to public errors: every name has its class, and the worker's words stay out of sight."""

import pytest

from neuron.actors import errors
from neuron.actors.device.jobs import Fault
from neuron.actors.device.replies import error_from_fault
from neuron.actors.device.worker.classify import Classified
from neuron.actors.device.worker.fault_table import Verdict
from neuron.actors.device.worker.verdicts import Failure, conclude, examine
from neuron.actors.scripted import ScriptError
from neuron.kernels.errors import LoadError
from neuron.kernels.formats.errors import FormatError, FormatKind
from neuron.runtime.errors import InternalError, NeuronError, ProtocolError


def _sound() -> None:
    """A probe that finds nothing."""


@pytest.mark.parametrize("kind", list(FormatKind))
def test_damaged_files_keep_their_code_and_their_public_words(kind: FormatKind) -> None:
    fault = conclude(5, examine(FormatError(kind, "model.gguf is short")), "load", _sound)
    assert (fault.job, fault.kind, fault.device_fault) == (5, "load", False)
    error = error_from_fault(fault, model_id="org/name")
    assert isinstance(error, errors.PreflightError)
    assert (error.code, error.status, error.message) == (str(kind), 422, "model.gguf is short")
    assert error.extra["model_id"] == "org/name"


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (LoadError("insufficient_memory", "8 GiB are needed"), errors.InsufficientVram),
        (LoadError("corrupt_weights", "leftover"), errors.CorruptWeights),
        (LoadError("some_new_code", "not by this build"), errors.PreflightError),
        (ScriptError("turns"), errors.InvalidConfig),
        (FileNotFoundError("x"), errors.SourceUnreadable),
        (PermissionError("x"), errors.SourceUnreadable),
        (MemoryError(), errors.InsufficientVram),
        (ProtocolError("segment"), ProtocolError),
        (ValueError("bug"), InternalError),
    ],
)
def test_load_errors(raised: Exception, expected: type[NeuronError]) -> None:
    fault = conclude(1, examine(raised), "load", _sound)
    assert not fault.device_fault
    assert type(error_from_fault(fault)) is expected


def test_an_os_error_in_a_step_is_internal() -> None:
    fault = conclude(1, examine(FileNotFoundError("x")), "decode", _sound)
    assert type(error_from_fault(fault)) is InternalError


@pytest.mark.parametrize("verdict", [Verdict.OOM, Verdict.PROBE])
@pytest.mark.parametrize("problem", [RuntimeError("zz"), MemoryError(), ValueError("x")])
def test_a_failed_probe_is_fatal(verdict: Verdict, problem: Exception) -> None:
    def probe() -> None:
        raise problem

    fault = conclude(1, Failure(Classified(verdict, "x", 2), "", "text"), "decode", probe)
    assert (fault.kind, fault.device_fault, fault.reason, fault.code) == ("device", True, "probe_failed", 2)


@pytest.mark.parametrize(
    "name", ["device_fault", "nan_logits", "insufficient_vram", "device_unavailable", "unsupported"]
)
def test_the_workers_words_are_the_cause_not_the_message(name: str) -> None:
    error = error_from_fault(Fault(1, "host", 0, name, "/secret 0xdeadbeef", False))
    assert "secret" not in error.message
    assert "secret" in str(error.__cause__)
