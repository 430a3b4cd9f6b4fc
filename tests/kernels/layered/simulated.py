"""`NUMBA_ENABLE_CUDASIM=1 python -m tests.kernels.layered.simulated FOLDER`: a model through the GPU's kernels.

The whole way of a GPU but the library's own products, with tensors on the CPU: prints, as JSON, the largest distance
of the logits of each step from those of plain tensors, and how often steps were recorded and replayed.
"""

import json
import sys
from pathlib import Path

import numpy as np

from neuron.kernels.layered import load as load_module
from neuron.kernels.layered.load import EngineOptions
from neuron.kernels.layered.model import LayeredModel
from neuron.kernels.layered.placement import Kernels
from tests.kernels.decoder.tiny import some_ids
from tests.kernels.layered.ranks import load
from tests.kernels.layered.recorders import Again

STEPS = 3


def main() -> None:
    folder, quant = Path(sys.argv[1]), sys.argv[2]
    # The warm-up runs hundreds of tokens, which the simulator takes minutes for.
    load_module.warm_up = _nothing
    recorder = Again()
    simulated = load(folder, quant, max_context=32, options=EngineOptions(Kernels.CUDA, recorder))
    plain = load(folder, quant, max_context=32, options=EngineOptions(Kernels.TENSORS))
    found = {"prompt": distance(simulated, plain, 0, 3)}
    for step in range(STEPS):
        found[f"step {step}"] = distance(simulated, plain, 3 + step, 4 + step)
    counts = {"recorded": recorder.recorded, "replayed": recorder.replayed}
    sys.stdout.write(json.dumps({"distance": found, **counts}) + "\n")


def distance(simulated: LayeredModel, plain: LayeredModel, begin: int, end: int) -> float:
    rows = [np.zeros(plain.vocab_size, dtype=np.float32) for _ in range(2)]
    for model, row in zip((simulated, plain), rows, strict=True):
        model.forward(0, some_ids(16)[begin:end], begin, row)
    return float(np.linalg.norm(rows[0] - rows[1]) / np.linalg.norm(rows[1]))


def _nothing(model: LayeredModel) -> None:
    pass


if __name__ == "__main__":
    main()
