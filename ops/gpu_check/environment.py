"""Stage `environment`: versions, the device, and what is not there."""

import importlib.metadata
import importlib.util
import platform
import sys
from typing import Any

import torch

from ops.gpu_check.context import Context
from ops.gpu_check.report import StageResult

_PACKAGES = ("numba", "numba-cuda", "triton", "flash-linear-attention", "pytest", "gguf", "numpy")


def run(context: Context, result: StageResult) -> None:
    figures = result.figures
    figures |= {"python": sys.version.split()[0], "system": platform.platform(), "torch": str(torch.__version__)}
    figures |= {"torch_cuda": torch.version.cuda, "cudnn": _cudnn()}
    for package in _PACKAGES:
        figures[package] = _version(package)
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


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cudnn() -> int | None:
    backend: Any = torch.backends.cudnn
    version: int | None = backend.version()
    return version
