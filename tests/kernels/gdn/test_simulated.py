"""CUDA kernels in the simulator against the float64 references; each check with a mutation that it must find."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.kernels.gdn.mutations import MUTATIONS

_ROOT = Path(__file__).resolve().parents[3]
_TOLERANCE = {"decode in bfloat16": 5e-3}
CHECKS = (
    "gating",
    "conv_update",
    "conv_full",
    "recurrent",
    "chunk",
    "chunk with like keys",
    "decode",
    "decode in bfloat16",
    "decode with tiled heads",
)


@cache
def errors(mutation: str = "") -> dict[str, float]:
    """Largest error of each check, from a process in which numba.cuda is the simulator."""
    command = [sys.executable, "-m", "tests.kernels.gdn.simulator", mutation]
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("check", CHECKS)
def test_a_kernel_equals_its_reference(check: str) -> None:
    assert errors()[check] < _TOLERANCE.get(check, 2e-5)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_is_found(mutation: str) -> None:
    """The named piece of the kernels is replaced by a wrong one; the checks that read it must fail."""
    found = errors(mutation)
    for check in MUTATIONS[mutation].checks:
        assert not found[check] < 20 * _TOLERANCE.get(check, 2e-5), check
