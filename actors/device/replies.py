"""From a Fault frame to the error that callers get. Used by the daemon side only."""

from neuron.actors import errors
from neuron.actors.device.jobs import Fault
from neuron.runtime.errors import InsufficientShm, InternalError, NeuronError, ProtocolError

_PREFLIGHT: tuple[type[errors.PreflightError], ...] = (
    errors.UnsupportedArchitecture,
    errors.UnsupportedDevice,
    errors.DoesNotFit,
    errors.IndivisibleHeads,
    errors.CorruptWeights,
    errors.InvalidGguf,
    errors.MissingShard,
    errors.InvalidConfig,
    errors.InvalidTokenizer,
    errors.SourceUnreadable,
    errors.EmptyRepo,
    errors.QuantNotFound,
    errors.TpRequiresSafetensors,
    errors.PreflightError,
)
_BY_PREFLIGHT_NAME = {error.code: error for error in _PREFLIGHT}
_PLAIN: tuple[type[NeuronError], ...] = (
    errors.DeviceFault,
    errors.NanLogits,
    errors.InsufficientVram,
    errors.DeviceUnavailable,
    errors.DeviceUnhealthy,
    errors.TpInitFailed,
    errors.TpDivergence,
    errors.InvalidImage,
    errors.InvalidValue,
    InsufficientShm,
    ProtocolError,
)
_BY_PLAIN_NAME = {error.code: error for error in _PLAIN}
_TEXTS = {
    "device_fault": "The device failed while this request ran.",
    "nan_logits": "The model produced no usable next-token distribution.",
    "insufficient_vram": "There is not enough device memory for this request right now.",
    "device_unavailable": "The device cannot be used.",
    "device_unhealthy": "The device is unhealthy.",
    "tp_init_failed": "The processes of the model's group did not find each other.",
    "tp_divergence": "The ranks of the model's group disagree.",
    "insufficient_shm": "There is not enough shared memory.",
    "protocol_error": "The device process sent something that cannot be trusted.",
    "unsupported": "The device process does not support this operation.",
}


class DeviceProcessError(Exception):
    """What the worker reported, for the log: the `__cause__` of the error that callers get."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(f"{fault.kind} fault, code {fault.code}, phase {fault.phase or '-'}: {fault.message}")
        self.fault = fault


def error_from_fault(fault: Fault, *, model_id: str = "") -> NeuronError:
    """The typed error of a Fault, with the worker's text as its cause."""
    text = fault.public or _TEXTS.get(fault.name, "The device process could not do this.")
    error: NeuronError
    if fault.name in _BY_PREFLIGHT_NAME:
        error = _BY_PREFLIGHT_NAME[fault.name](text, model_id=model_id)
    elif fault.name in _BY_PLAIN_NAME:
        error = _BY_PLAIN_NAME[fault.name](text)
    elif fault.kind == "load" and fault.phase == "load":
        error = errors.PreflightError(text, model_id=model_id)
    else:
        error = InternalError(text)
    error.__cause__ = DeviceProcessError(fault)
    return error
