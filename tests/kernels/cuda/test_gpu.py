"""Every CUDA kernel on hardware, at published widths, against float64: `pytest -m gpu`. The one place of such tests."""

import pytest

from tests.kernels.cuda import checks
from tests.kernels.gdn import device_checks

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def device() -> None:
    from numba import cuda

    if not cuda.is_available():
        pytest.skip("no CUDA device in this machine")
    import torch

    if not torch.cuda.is_available():
        pytest.skip("this build of torch has no CUDA")


@pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning")
@pytest.mark.parametrize("size", ["small", "real"])
@pytest.mark.parametrize("check", device_checks.CHECKS)
def test_a_kernel_of_gated_deltanet(check: str, size: str) -> None:
    error = device_checks.CHECKS[check](device_checks.REAL if size == "real" else device_checks.HARDWARE)
    assert error < device_checks.TOLERANCE[check] * (5 if size == "real" else 1)


@pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning")
@pytest.mark.parametrize("size", ["small", "real"])
@pytest.mark.parametrize("check", checks.CHECKS)
def test_a_kernel_of_a_step(check: str, size: str) -> None:
    error = checks.CHECKS[check](checks.REAL if size == "real" else checks.SMALL)
    assert error < checks.tolerance(check)


@pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning")
def test_launches_are_recorded_and_replayed() -> None:
    """A CUDA graph of our launches on torch's stream reads positions anew at each replay."""
    import numpy as np
    import torch

    from neuron.kernels.fused import launch
    from neuron.kernels.fused.attend.naive import attend

    size = checks.REAL
    attention = launch.Attention(size.heads, size.kv_heads, size.dim, 1, size.context, checks.device())
    query, rows = checks.randoms(1, size.heads, size.dim), checks.randoms(2, size.kv_heads, size.context, size.dim)
    out, index = torch.empty(1, size.heads * size.dim, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")
    scale = size.dim**-0.5
    attention.run(query, rows, index, scale, None, out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        attention.run(query, rows, index, scale, None, out)
    for last in (3, 700, size.context - 1):
        index.fill_(last)
        graph.replay()
        wanted = attend(checks.wide(query), checks.wide(rows), np.array([last]), scale).reshape(1, -1)
        assert checks.error(out, wanted) < 1e-5
