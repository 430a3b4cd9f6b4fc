"""The way of a GPU in the simulator: fused kernels, blocks, linear layers and replayed steps give what tensors give."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kernels.hybrid.tiny import tiny_hybrid
from tests.kernels.layered.families import FULL, LINEAR

_ROOT = Path(__file__).resolve().parents[3]
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 32,
    "layer_types": [LINEAR, FULL],
}
ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}


@pytest.mark.timeout(300)
def test_a_hybrid_on_a_simulated_gpu_equals_plain_tensors(tmp_path: Path) -> None:
    tiny_hybrid(tmp_path, rope_parameters={**ROPE, "mrope_interleaved": True}, **SMALL)
    command = [sys.executable, "-m", "tests.kernels.layered.simulated", str(tmp_path)]
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert max(found["distance"].values()) < 5e-6, found
    assert (found["recorded"], found["replayed"]) == (1, 2)
