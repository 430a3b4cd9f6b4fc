"""`NUMBA_ENABLE_CUDASIM=1 python -m tests.kernels.layered.simulated FOLDER`: a model through the GPU's kernels.

The whole way of a GPU but the library's own products, with tensors on the CPU: prints, as JSON, the largest distance
of the logits of each step from those of plain tensors, and how often steps were recorded and replayed.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

from neuron.kernels.formats.dequant import dequantise
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.layered import load as load_module
from neuron.kernels.layered.cuda_linear import CudaBlockLinear
from neuron.kernels.layered.load import EngineOptions
from neuron.kernels.layered.model import LayeredModel
from neuron.kernels.layered.placement import Kernels
from neuron.kernels.quant.cuda.products import MOST_ROWS
from tests.kernels.decoder.tiny import some_ids
from tests.kernels.layered.ranks import load
from tests.kernels.layered.recorders import Again
from tests.kernels.quant.blocks import random_matrix

STEPS = 3


def main() -> None:
    folder = Path(sys.argv[1])
    # The warm-up runs hundreds of tokens, which the simulator takes minutes for.
    load_module.warm_up = _nothing
    recorder = Again()
    simulated = load(folder, max_context=32, options=EngineOptions(Kernels.CUDA, recorder))
    plain = load(folder, max_context=32, options=EngineOptions(Kernels.TENSORS))
    found = {"prompt": distance(simulated, plain, 0, 2)}
    for step in range(STEPS):
        found[f"step {step}"] = distance(simulated, plain, 2 + step, 3 + step)
    found |= blocks()
    counts = {"recorded": recorder.recorded, "replayed": recorder.replayed}
    sys.stdout.write(json.dumps({"distance": found, **counts}) + "\n")


def distance(simulated: LayeredModel, plain: LayeredModel, begin: int, end: int) -> float:
    rows = [np.zeros(plain.vocab_size, dtype=np.float32) for _ in range(2)]
    for model, row in zip((simulated, plain), rows, strict=True):
        model.forward(0, some_ids(16)[begin:end], begin, row)
    return float(np.linalg.norm(rows[0] - rows[1]) / np.linalg.norm(rows[1]))


def blocks() -> dict[str, float]:
    """A quantised matrix as a linear: few rows, many, a part of it, rows themselves."""
    matrix = random_matrix(GgmlType.Q8_0, 5, 64)
    weights = torch.from_numpy(dequantise(matrix.data.reshape(-1), matrix.kind, (5, 64)))
    linear = CudaBlockLinear.placed(matrix, torch.float32, torch.device("cpu"))
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((MOST_ROWS + 1, 64)).astype(np.float32))
    pairs = {
        "few rows": (linear.forward(x[:2]), x[:2] @ weights.T),
        "many rows": (linear.forward(x), x @ weights.T),
        "part": (linear.part(1, 4).forward(x[:1]), x[:1] @ weights[1:4].T),
        "lookup": (linear.lookup(torch.tensor([4, 0])), weights[[4, 0]]),
    }
    return {name: float((a - b).norm() / b.norm()) for name, (a, b) in pairs.items()}


def _nothing(model: LayeredModel) -> None:
    pass


if __name__ == "__main__":
    main()
