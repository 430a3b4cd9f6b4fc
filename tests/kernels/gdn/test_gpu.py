"""CUDA kernels on hardware, at the published widths, against the float64 references: `pytest -m gpu`."""

import pytest

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def device() -> None:
    from numba import cuda

    if not cuda.is_available():
        pytest.skip("no CUDA device in this machine")


@pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning")
@pytest.mark.parametrize("size", ["small", "real"])
@pytest.mark.parametrize(
    "check",
    [
        "gating",
        "conv_update",
        "conv_full",
        "recurrent",
        "chunk",
        "chunk with like keys",
        "decode",
        "decode in bfloat16",
        "decode with tiled heads",
    ],
)
def test_a_kernel_equals_its_reference(check: str, size: str) -> None:
    from tests.kernels.gdn.device_checks import CHECKS, HARDWARE, REAL, TOLERANCE

    error = CHECKS[check](REAL if size == "real" else HARDWARE)
    assert error < TOLERANCE[check] * (5 if size == "real" else 1)
