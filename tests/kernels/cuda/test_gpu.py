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


@pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning")
@pytest.mark.parametrize("kinds", [("F32", "F32"), ("BF16", "BF16"), ("Q4_K", "Q6_K")])
def test_a_model_computes_what_it_does_on_a_cpu(kinds: tuple[str, str]) -> None:
    """The whole engine: a prompt over several chunks, then steps, of which all but the first are replayed."""
    import numpy as np
    import torch

    from neuron.kernels.engine import LoadSpec
    from neuron.kernels.formats.ggml_types import GgmlType
    from neuron.kernels.layered.load import EngineOptions, load_layered
    from neuron.kernels.layered.model import LayeredModel
    from neuron.kernels.layered.placement import Kernels
    from neuron.kernels.threads import Team
    from ops.gpu_check.random_model import SHAPES, opened, tiny

    quant, ends = (GgmlType[name] for name in kinds)
    models = []
    for name, kernels in (("cuda", Kernels.CUDA), ("cpu", Kernels.TENSORS)):
        made = opened(tiny(SHAPES["27B"]), quant, ends)
        place, options = torch.device(name), EngineOptions(kernels)
        spec = LoadSpec("safetensors", (), 256)
        models.append(load_layered(spec, made, place, Team(1), lambda stage, fraction: None, options=options))
    tokens = np.random.default_rng(0).integers(0, 320, 150).astype(np.int32)
    rows = [np.zeros(320, dtype=np.float32) for _ in models]
    for begin, end in ((0, 137), *((place, place + 1) for place in range(137, 150))):
        for model, row in zip(models, rows, strict=True):
            model.forward(0, tokens[begin:end], begin, row)
        error = np.linalg.norm(rows[0] - rows[1]) / np.linalg.norm(rows[1])
        assert error < (1e-4 if quant is GgmlType.F32 else 3e-2), begin
    assert isinstance(models[0], LayeredModel)
    assert models[0].replayable(0) is not None
    for model in models:
        model.close()
