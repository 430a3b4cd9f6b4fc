"""The table that classifies device faults: one line a rule. Read by `classify`; each line has a test vector.

Numeric codes are those of the CUDA runtime (13.0, driver_types.h), which the driver API shares for these errors.
"""

from enum import StrEnum
from typing import NamedTuple


class Verdict(StrEnum):
    """What a fault means for the process.

    FATAL: the context or device is gone. PROBE: possibly exhausted memory or a host-side defect; a probe decides.
    OOM: as PROBE, and answered as insufficient memory. LOAD: the device cannot be used as configured.
    GROUP: a collective failed, every rank goes. HOST: the device was never involved.
    """

    FATAL = "fatal"
    PROBE = "probe"
    OOM = "oom"
    LOAD = "load"
    GROUP = "group"
    HOST = "host"


class CodeRule(NamedTuple):
    code: int
    name: str
    verdict: Verdict
    #: The library's text for the code; used where the code itself was lost.
    text: str


class TextRule(NamedTuple):
    name: str
    verdict: Verdict
    #: Looked for in the exception's text, without regard to case.
    text: str


_F, _P, _O, _L, _G, _H = Verdict.FATAL, Verdict.PROBE, Verdict.OOM, Verdict.LOAD, Verdict.GROUP, Verdict.HOST

CODE_RULES: tuple[CodeRule, ...] = (
    CodeRule(700, "illegal_address", _F, "an illegal memory access was encountered"),
    CodeRule(710, "device_assert", _F, "device-side assert triggered"),
    CodeRule(714, "hardware_stack", _F, "hardware stack error"),
    CodeRule(715, "illegal_instruction", _F, "an illegal instruction was encountered"),
    CodeRule(716, "misaligned_address", _F, "misaligned address"),
    CodeRule(717, "invalid_address_space", _F, "operation not supported on global/shared address space"),
    CodeRule(718, "invalid_pc", _F, "invalid program counter"),
    CodeRule(719, "launch_failure", _F, "unspecified launch failure"),
    CodeRule(702, "launch_timeout", _F, "the launch timed out and was terminated"),
    CodeRule(721, "tensor_memory_leak", _F, "tensor memory leak"),
    CodeRule(226, "contained_error", _F, "contained error"),
    CodeRule(810, "mps_client_terminated", _F, "MPS client terminated"),
    CodeRule(911, "external_device", _F, "external device"),
    CodeRule(214, "ecc_uncorrectable", _F, "uncorrectable ECC error encountered"),
    CodeRule(220, "nvlink_uncorrectable", _F, "uncorrectable NVLink error"),
    CodeRule(709, "context_destroyed", _F, "context is destroyed"),
    CodeRule(4, "runtime_unloading", _F, "driver shutting down"),
    CodeRule(999, "unknown_error", _F, "CUDA error: unknown error"),
    CodeRule(46, "devices_unavailable", _L, "all CUDA-capable devices are busy or unavailable"),
    CodeRule(100, "no_device", _L, "no CUDA-capable device is detected"),
    CodeRule(802, "system_not_ready", _L, "system not yet initialized"),
    CodeRule(803, "driver_mismatch", _L, "system has unsupported display driver / cuda driver combination"),
    CodeRule(804, "compat_not_supported", _L, "forward compatibility was attempted on non supported HW"),
    CodeRule(98, "invalid_device_function", _L, "invalid device function"),
    CodeRule(209, "no_kernel_image", _L, "no kernel image is available for execution on the device"),
    CodeRule(200, "invalid_kernel_image", _L, "device kernel image is invalid"),
    CodeRule(222, "ptx_version", _L, "the provided PTX was compiled with an unsupported toolchain"),
    CodeRule(2, "out_of_memory", _O, "CUDA error: out of memory"),
    CodeRule(701, "launch_out_of_resources", _P, "too many resources requested for launch"),
    CodeRule(1, "invalid_value", _P, "CUDA error: invalid argument"),
    CodeRule(400, "invalid_handle", _P, "invalid resource handle"),
    CodeRule(101, "invalid_device", _P, "invalid device ordinal"),
    CodeRule(900, "capture_unsupported", _P, "operation not permitted when stream is capturing"),
    CodeRule(901, "capture_invalidated", _P, "operation failed due to a previous error during capture"),
    CodeRule(902, "capture_merge", _P, "operation would result in a merge of separate capture sequences"),
    CodeRule(903, "capture_unmatched", _P, "capture was not ended in the same stream as it began"),
    CodeRule(904, "capture_unjoined", _P, "capturing stream has unjoined work"),
    CodeRule(905, "capture_isolation", _P, "dependency created on uncaptured work in another stream"),
    CodeRule(
        906, "capture_implicit", _P, "operation would make the legacy stream depend on a capturing blocking stream"
    ),
    CodeRule(907, "captured_event", _P, "operation not permitted on an event last recorded in a capturing stream"),
    CodeRule(
        908, "capture_wrong_thread", _P, "attempt to terminate a thread-local capture sequence from another thread"
    ),
)

#: Asked in this order, after the codes and before the codes' own texts.
TEXT_RULES: tuple[TextRule, ...] = (
    TextRule("out_of_memory", _O, "out of memory. Tried to allocate"),
    TextRule("cpu_out_of_memory", _O, "DefaultCPUAllocator: can't allocate memory"),
    TextRule("cublas_not_initialized", _P, "CUBLAS_STATUS_NOT_INITIALIZED"),
    TextRule("cublas_alloc_failed", _P, "CUBLAS_STATUS_ALLOC_FAILED"),
    TextRule("cublas_internal_error", _P, "CUBLAS_STATUS_INTERNAL_ERROR"),
    TextRule("cublas_execution_failed", _F, "CUBLAS_STATUS_EXECUTION_FAILED"),
    TextRule("cublas_mapping_error", _F, "CUBLAS_STATUS_MAPPING_ERROR"),
    TextRule("cublas_not_supported", _H, "CUBLAS_STATUS_NOT_SUPPORTED"),
    TextRule("cublas_invalid_value", _H, "CUBLAS_STATUS_INVALID_VALUE"),
    TextRule("cudnn_not_initialized", _P, "CUDNN_STATUS_NOT_INITIALIZED"),
    TextRule("cudnn_alloc_failed", _P, "CUDNN_STATUS_ALLOC_FAILED"),
    TextRule("cudnn_internal_error", _P, "CUDNN_STATUS_INTERNAL_ERROR"),
    TextRule("cudnn_execution_failed", _F, "CUDNN_STATUS_EXECUTION_FAILED"),
    TextRule("cudnn_mapping_error", _F, "CUDNN_STATUS_MAPPING_ERROR"),
    TextRule("cudnn_not_supported", _H, "CUDNN_STATUS_NOT_SUPPORTED"),
    TextRule("cudnn_bad_param", _H, "CUDNN_STATUS_BAD_PARAM"),
    TextRule("nccl_unhandled_cuda", _G, "ncclUnhandledCudaError"),
    TextRule("nccl_system", _G, "ncclSystemError"),
    TextRule("nccl_internal", _G, "ncclInternalError"),
    TextRule("nccl_invalid_usage", _G, "ncclInvalidUsage"),
    TextRule("nccl_remote", _G, "ncclRemoteError"),
    TextRule("nccl_aborted", _G, "NCCL communicator was aborted on rank"),
    TextRule("nccl_watchdog", _G, "Watchdog caught collective operation timeout"),
    TextRule("gloo_peer_closed", _G, "Connection closed by peer"),
    TextRule("gloo_peer_reset", _G, "Connection reset by peer"),
    TextRule("gloo_timeout", _G, "for recv operation to complete"),
    TextRule("gloo_send_timeout", _G, "for send operation to complete"),
    TextRule("gloo_application_timeout", _G, "Application timeout caused pair closure"),
    TextRule("gloo_connect", _G, "Gloo connectFullMesh failed with"),
    TextRule("gloo_transport", _G, "gloo/transport/tcp"),
    TextRule("peer_lost", _G, "a rank of the group is gone"),
    TextRule("matmul_shapes", _H, "shapes cannot be multiplied"),
    TextRule("broadcast_shapes", _H, "must match the size of tensor"),
    TextRule("expand_shapes", _H, "must match the existing size"),
    TextRule("view_shape", _H, "is invalid for input of size"),
    TextRule("same_dtype", _H, "to have the same dtype"),
    TextRule("sizes_must_match", _H, "Sizes of tensors must match"),
    TextRule("index_out_of_range", _H, "index out of range in self"),
    TextRule("probability_tensor", _H, "probability tensor contains either"),
    TextRule("generic_cuda", _F, "CUDA error:"),
    TextRule("generic_driver", _F, "CUDA driver error:"),
)
