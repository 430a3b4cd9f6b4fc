"""CUDA kernels and their launchers in the simulator against float64; mutations that the checks must find."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.kernels.cuda.checks import CHECKS, tolerance
from tests.kernels.cuda.mutations import MUTATIONS

_ROOT = Path(__file__).resolve().parents[3]


@cache
def errors(mutated: int = 0) -> dict[str, float]:
    """Largest error of each check, from a process in which numba.cuda is the simulator. `mutated`: a round, or 0."""
    command = [sys.executable, "-m", "tests.kernels.cuda.simulator", *([str(mutated)] if mutated else [])]
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    return found


@pytest.mark.timeout(420)
@pytest.mark.parametrize("check", CHECKS)
def test_a_kernel_equals_its_reference(check: str) -> None:
    assert errors()[check] < tolerance(check)


@pytest.mark.timeout(420)
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_is_found(mutation: str) -> None:
    """The named piece of the kernels is replaced by a wrong one; the checks that read it must fail."""
    found = errors(MUTATIONS[mutation].round)
    for check in MUTATIONS[mutation].checks:
        assert not found[check] < 20 * tolerance(check), check
