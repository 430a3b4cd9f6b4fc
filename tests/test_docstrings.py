"""Examples in docstrings are run as they stand."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {"actors": "neuron.actors", "api": "neuron.api", "runtime": "neuron.runtime", "kernels": "neuron.kernels"}


def _modules() -> list[str]:
    found = []
    for folder, package in {**PACKAGES, "ops": "ops"}.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            if ">>> " in path.read_text(encoding="utf-8"):
                inner = path.relative_to(ROOT / folder).with_suffix("").parts
                found.append(".".join((package, *inner)))
    return found


@pytest.mark.parametrize("name", _modules())
def test_examples(name: str) -> None:
    results = doctest.testmod(import_module(name))
    assert results.attempted > 0
    assert results.failed == 0
