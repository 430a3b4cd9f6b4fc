"""Makes the platform library's own exceptions on purpose, for the scripted backend and failpoints.

The real classes are used so that the classifier is tested, and not a look-alike. torch is imported on first use.
"""

import importlib
import re
from typing import Any

from neuron.actors.device.worker.fault_table import CODE_RULES

DEFAULT_TEXT = "CUDA error: an illegal memory access was encountered"
DEFAULT_OOM = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB."
_CODE = re.compile(r"\b(?:error|code)\D{0,3}(\d{1,3})\b", re.IGNORECASE)


def device_error(kind: str, code: int = 0, text: str = "") -> Exception:
    """`kind`: accelerator, oom, cuda_api, cuda_core, dist, runtime or value. Raises nothing itself."""
    if kind == "value":
        return ValueError(text)
    if kind == "runtime":
        return RuntimeError(text)
    if kind == "cuda_api":
        from numba.cuda.cudadrv.driver import CudaAPIError

        return CudaAPIError(code, text)  # type: ignore[no-any-return]
    if kind == "cuda_core":
        names: Any = importlib.import_module("cuda.bindings.driver").CUresult
        made: Any = importlib.import_module("cuda.core._utils.cuda_utils").CUDAError
        launch: Exception = made(f"{names(code).name}: {text}")
        return launch
    import torch

    if kind == "oom":
        return torch.OutOfMemoryError(text or DEFAULT_OOM)
    if kind == "dist":
        from torch.distributed import DistBackendError

        return DistBackendError(text)
    error: Exception = torch.AcceleratorError(text or DEFAULT_TEXT)
    if code:
        error.error_code = code  # type: ignore[attr-defined]
    return error


def from_text(text: str) -> Exception:
    """The exception that the library would raise with this text (class and code follow from it)."""
    text = text or DEFAULT_TEXT
    lowered = text.lower()
    if "tried to allocate" in lowered:
        return device_error("oom", text=text)
    if "cublas_status" in lowered or "cudnn_status" in lowered or "gloo" in lowered:
        return device_error("runtime", text=text)
    if "nccl" in lowered:
        return device_error("dist", text=text)
    return device_error("accelerator", _code_in(text), text)


def _code_in(text: str) -> int:
    lowered = text.lower()
    for rule in CODE_RULES:
        if rule.text.lower() in lowered:
            return rule.code
    match = _CODE.search(text)
    return int(match[1]) if match else 0


def prepare() -> None:
    """Import torch now, so that a fault is not preceded by seconds of importing."""
    import torch  # noqa: F401
