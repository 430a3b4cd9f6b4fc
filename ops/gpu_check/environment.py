"""Stage `environment`: versions, the device, and what is not there."""

import importlib.metadata
import importlib.util
import platform
import sys
from typing import Any

import torch

from neuron.kernels.layered.graph import CudaRecorder
from ops.gpu_check.context import Context
from ops.gpu_check.report import StageResult

_PACKAGES = ("numba", "numba-cuda", "triton", "flash-linear-attention", "pytest", "numpy")
#: Beside torch and numba, what the stages import.
_NEEDED = ("gguf", "structlog")


def run(context: Context, result: StageResult) -> None:
    figures = result.figures
    figures |= {"python": sys.version.split()[0], "system": platform.platform(), "torch": str(torch.__version__)}
    figures |= {"torch_cuda": torch.version.cuda, "cudnn": _cudnn()}
    for package in _PACKAGES:
        figures[package] = _version(package)
    for package in _NEEDED:
        figures[package] = _version(package)
        if figures[package] is None:
            result.missing(f"{package} is not installed: models and faults cannot run (pip install {package})")
    if figures["numba-cuda"] is None:
        result.missing("numba-cuda is not installed: pip install 'numba-cuda[cu13]' (or cu12, as torch's CUDA says)")
    if not context.cuda:
        figures["device"] = platform.processor() or platform.machine()
        return
    if not torch.cuda.is_available():
        reason = "this build of torch has no CUDA" if torch.version.cuda is None else "torch finds no device or driver"
        result.failed(f"no CUDA device: {reason}")
        return
    properties = torch.cuda.get_device_properties(context.device)
    free, total = torch.cuda.mem_get_info(context.device)
    figures |= {
        "device": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": total,
        "free_bytes": free,
    }
    if figures["numba-cuda"] is not None:
        from numba import cuda

        figures["numba_sees_device"] = bool(cuda.is_available())
        if not figures["numba_sees_device"]:
            result.missing("numba-cuda does not see the device: its [cu12] or [cu13] extra must match the driver")
            return
        try:
            figures["numba_launches"] = launches(context)
        except Exception as error:
            line = f"{type(error).__name__}: {error}".partition("\n")[0]
            result.missing(f"numba-cuda compiles or launches nothing here ({line}): is there an NVVM, or CUDA_HOME?")


def launches(context: Context) -> bool:
    """Whether a kernel of numba's does its work beside torch's, launched and replayed."""
    from neuron.kernels.cuda import kernel, launch

    def double(values):  # type: ignore[no-untyped-def]
        for place in range(values.shape[0]):
            values[place] *= 2.0

    values, compiled = torch.ones(8, device=context.device), kernel(double)

    def work() -> None:
        values.add_(1.0)
        launch(compiled, (1,), 1, (values,))

    work()
    if context.cuda:
        replay = CudaRecorder().record(work)
        replay()
    else:
        work()
    context.synchronise()
    return bool((values == 10.0).all())


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cudnn() -> int | None:
    backend: Any = torch.backends.cudnn
    version: int | None = backend.version()
    return version
