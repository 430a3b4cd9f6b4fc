"""Every line of the fault table against the exception that the library really raises; a line without one fails."""

import importlib
from collections.abc import Callable

import pytest

from neuron.actors.device.worker.classify import (
    Classified,
    NanLogitsError,
    RequestFault,
    classify,
    describe,
    numeric_code,
)
from neuron.actors.device.worker.fault_table import CODE_RULES, TEXT_RULES, CodeRule, TextRule, Verdict
from neuron.actors.device.worker.raising import device_error, from_text
from neuron.actors.device.worker.verdicts import examine
from neuron.kernels.errors import WeightMismatch
from neuron.kernels.formats.errors import FormatError
from neuron.runtime.errors import InsufficientShm

HINT = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
)

#: Codes that the runtime has and the driver has not.
RUNTIME_ONLY = {"invalid_device_function"}
#: Full texts as seen in the field, by the name of the line that must catch them.
TEXT_VECTORS: dict[str, str] = {
    "out_of_memory": "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 7.79 GiB",
    "cpu_out_of_memory": "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried",
    "cublas_not_initialized": "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "cublas_alloc_failed": "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cublas_internal_error": "CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasGemmEx(...)`",
    "cublas_execution_failed": "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`",
    "cublas_mapping_error": "CUDA error: CUBLAS_STATUS_MAPPING_ERROR when calling `cublasSgemm(...)`",
    "cublas_not_supported": "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmul(...)`",
    "cublas_invalid_value": "CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasSgemm(...)`",
    "cudnn_not_initialized": "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
    "cudnn_alloc_failed": "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "cudnn_internal_error": "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
    "cudnn_execution_failed": "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
    "cudnn_mapping_error": "cuDNN error: CUDNN_STATUS_MAPPING_ERROR",
    "cudnn_not_supported": "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a "
    "non-contiguous input.",
    "cudnn_bad_param": "cuDNN error: CUDNN_STATUS_BAD_PARAM",
    "nccl_unhandled_cuda": "NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled cuda error: ncclUnhandledCudaError",
    "nccl_system": "NCCL error: ncclSystemError: System call (e.g. socket, malloc) or external library call failed",
    "nccl_internal": "NCCL error: ncclInternalError: Internal check failed.",
    "nccl_invalid_usage": "NCCL error: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
    "nccl_remote": "ncclRemoteError: A call failed possibly due to a remote process exiting prematurely",
    "nccl_aborted": "NCCL communicator was aborted on rank 1.",
    "nccl_watchdog": "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE)",
    "gloo_peer_closed": "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4",
    "gloo_peer_reset": "[../gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:24793: Connection reset by peer.",
    "gloo_timeout": "[../gloo/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete",
    "gloo_send_timeout": "[../third_party/gloo/unbound_buffer.cc:98] Timed out waiting 5000ms for send operation to "
    "complete",
    "gloo_application_timeout": "[../third_party/gloo/tcp/pair.cc:525] Application timeout caused pair closure",
    "gloo_connect": "Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no error",
    "gloo_transport": "[enforce fail at ../gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4",
    "peer_lost": "a rank of the group is gone",
    "matmul_shapes": "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
    "broadcast_shapes": "The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 0",
    "expand_shapes": "The expanded size of the tensor (4) must match the existing size (3).",
    "view_shape": "shape '[2, 7]' is invalid for input of size 12",
    "same_dtype": "expected m1 and m2 to have the same dtype, but got: float != c10::BFloat16",
    "sizes_must_match": "Sizes of tensors must match except in dimension 0. Expected size 3 but got size 4",
    "index_out_of_range": "index out of range in self",
    "probability_tensor": "probability tensor contains either `inf`, `nan` or element < 0",
    "generic_cuda": "CUDA error: something that no table knows",
    "generic_driver": "CUDA driver error: something that no table knows",
}


def _text_rule(name: str) -> TextRule:
    return next(rule for rule in TEXT_RULES if rule.name == name)


def test_every_text_line_has_a_vector() -> None:
    assert set(TEXT_VECTORS) == {rule.name for rule in TEXT_RULES}


def test_names_and_codes_are_unique() -> None:
    names = [rule.name for rule in CODE_RULES] + [rule.name for rule in TEXT_RULES]
    doubled = {name for name in names if names.count(name) > 1}
    assert doubled == {"out_of_memory"}  # The same finding by code and by text.
    assert len({rule.code for rule in CODE_RULES}) == len(CODE_RULES)


@pytest.mark.parametrize("name", sorted(TEXT_VECTORS))
def test_text_lines(name: str) -> None:
    rule = _text_rule(name)
    found = classify(RuntimeError(TEXT_VECTORS[name]))
    assert (found.rule, found.verdict) == (rule.name, rule.verdict)


@pytest.mark.parametrize("rule", CODE_RULES, ids=lambda rule: f"{rule.code}-{rule.name}")
def test_code_lines_by_code_alone(rule: CodeRule) -> None:
    error = device_error("accelerator", rule.code, "no text that anyone knows")
    assert classify(error) == Classified(rule.verdict, rule.name, rule.code)


@pytest.mark.parametrize("rule", CODE_RULES, ids=lambda rule: f"{rule.code}-{rule.name}")
def test_code_lines_by_text_alone(rule: CodeRule) -> None:
    """Torch may lose the code; a plain RuntimeError carries the text and the hint lines."""
    text = rule.text if rule.text.startswith("CUDA") else f"CUDA error: {rule.text}"
    assert classify(RuntimeError(text + HINT)) == Classified(rule.verdict, rule.name, rule.code)


@pytest.mark.parametrize("rule", CODE_RULES, ids=lambda rule: f"{rule.code}-{rule.name}")
def test_a_scripts_text_gets_the_librarys_class_and_code(rule: CodeRule) -> None:
    import torch

    error = from_text(f"CUDA error: {rule.text}")
    assert isinstance(error, torch.AcceleratorError)
    assert numeric_code(error) == rule.code


def test_a_failed_launch_of_numbas_is_known_by_the_name_in_its_text() -> None:
    """cuda.core, through which numba launches, raises an error without a number."""
    known = {int(code) for code in importlib.import_module("cuda.bindings.driver").CUresult}
    named = [rule for rule in CODE_RULES if rule.code in known]
    assert {rule.name for rule in CODE_RULES} - {rule.name for rule in named} == RUNTIME_ONLY
    for rule in named:
        error = device_error("cuda_core", rule.code, "what the driver says of it")
        assert classify(error) == Classified(rule.verdict, rule.name, rule.code)


def test_a_launch_that_fails_for_an_unknown_reason_is_fatal() -> None:
    error = device_error("cuda_core", 700)
    error.args = ("CUDA_ERROR_OF_THE_FUTURE: nobody knows",)
    assert classify(error) == Classified(Verdict.FATAL, "unclassified")


@pytest.mark.parametrize("rule", CODE_RULES, ids=lambda rule: f"{rule.code}-{rule.name}")
def test_numbas_code_wins_over_its_text(rule: CodeRule) -> None:
    """Numba prints UNKNOWN_CUDA_ERROR for codes that it does not know by name."""
    error = device_error("cuda_api", rule.code, "Call to cuMemcpyDtoH results in UNKNOWN_CUDA_ERROR")
    assert classify(error) == Classified(rule.verdict, rule.name, rule.code)


def test_the_code_wins_over_another_codes_text() -> None:
    error = device_error("accelerator", 700, "CUDA error: out of memory")
    assert classify(error).rule == "illegal_address"


@pytest.mark.parametrize("code", [3, 35, 300, 720, 722, 998, 1234])
def test_unknown_codes_are_fatal(code: int) -> None:
    found = classify(device_error("accelerator", code, "CUDA error: ?"))
    assert found == Classified(Verdict.FATAL, "unknown_code", code)


@pytest.mark.parametrize("error", [RuntimeError("zz"), RuntimeError(""), SystemError("zz"), Exception("x")])
def test_unknown_texts_are_fatal(error: Exception) -> None:
    assert classify(error) == Classified(Verdict.FATAL, "unclassified")


def test_an_accelerator_error_without_code_or_known_text_is_fatal() -> None:
    assert classify(device_error("accelerator", 0, "zz")).verdict is Verdict.FATAL


@pytest.mark.parametrize(
    "error",
    [
        ValueError("CUDA error: an illegal memory access was encountered"),  # A sentence is no device error.
        ValueError("shape"),
        IndexError("token"),
        KeyError("handle"),
        ModuleNotFoundError("No module named 'numba_cuda'"),
        TypeError("tokens"),
        NanLogitsError("nan"),
        RequestFault("internal_error", "no such handle"),
        FileNotFoundError("x"),
        NotImplementedError("x"),
        RecursionError("x"),
        ZeroDivisionError(),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_python_errors_are_the_hosts(error: Exception) -> None:
    assert classify(error).verdict is Verdict.HOST


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda text: FormatError("corrupt_weights", text), "corrupt_weights"),
        (lambda text: WeightMismatch(text), "corrupt_weights"),
        (lambda text: InsufficientShm(text), "insufficient_shm"),
        (lambda text: RequestFault("unsupported", text), "unsupported"),
    ],
)
@pytest.mark.parametrize("rule", [*CODE_RULES, *TEXT_RULES], ids=lambda rule: rule.name)
def test_names_out_of_a_file_are_no_device_faults(
    rule: CodeRule | TextRule, make: Callable[[str], Exception], name: str
) -> None:
    """A tensor may be called whatever its file likes."""
    failure = examine(make(f"weights: tensor '{rule.text}' is there twice."))
    assert (failure.classified.verdict, failure.name) == (Verdict.HOST, name)


def _chained(outer: Exception, inner: Exception, *, explicit: bool) -> Exception:
    try:
        try:
            raise inner
        except Exception as caught:
            if explicit:
                raise outer from caught
            raise outer  # noqa: B904 - the implicit chain is what is tested
    except Exception as error:
        return error


@pytest.mark.parametrize("explicit", [True, False])
def test_a_wrapped_device_error_is_one(explicit: bool) -> None:
    error = _chained(ValueError("load failed"), device_error("accelerator", 719, "x"), explicit=explicit)
    assert classify(error).rule == "launch_failure"
    assert describe(error).startswith("ValueError: load failed <- AcceleratorError")


def test_a_suppressed_context_is_not_looked_at() -> None:
    error = _chained(ValueError("x"), RuntimeError("zz"), explicit=False)
    error.__suppress_context__ = True
    assert classify(error).verdict is Verdict.HOST


@pytest.mark.parametrize(
    "make", [lambda: device_error("oom"), lambda: MemoryError(), lambda: device_error("accelerator", 2, "x")]
)
def test_out_of_memory(make: Callable[[], Exception]) -> None:
    found = classify(make())
    assert (found.verdict, found.rule) == (Verdict.OOM, "out_of_memory")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "AcceleratorError"),
        ("something odd", "AcceleratorError"),
        ("CUDA error 719", "AcceleratorError"),
        ("CUDA out of memory. Tried to allocate 2.00 GiB.", "OutOfMemoryError"),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `x`", "RuntimeError"),
        ("ncclSystemError: x", "DistBackendError"),
        ("[../gloo/transport/tcp/pair.cc:1] Connection closed by peer", "RuntimeError"),
    ],
)
def test_classes_of_scripted_texts(text: str, kind: str) -> None:
    assert type(from_text(text)).__name__ == kind


def test_a_bare_number_in_a_text_is_its_code() -> None:
    assert numeric_code(from_text("CUDA error 719")) == 719
    assert numeric_code(from_text("")) == 700
