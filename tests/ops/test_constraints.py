"""The exact pins of the set-up commands can be installed beside each other, and cover what is asked for."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]

#: What the CUDA build of torch pins through `cuda-toolkit`, which a machine with the CPU build cannot see.
OF_TORCH = {
    "2.13.0": {
        "nvidia-cuda-crt": "13.0.88",
        "nvidia-cuda-nvcc": "13.0.88",
        "nvidia-cuda-nvrtc": "13.0.88",
        "nvidia-cuda-runtime": "13.0.96",
        "nvidia-nvvm": "13.0.88",
    }
}


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = (re.fullmatch(r"([\w.-]+)==(\S+)", line) for line in lines)
    return {canonicalize_name(match[1]): match[2] for match in found if match}


def test_the_cuda_packages_are_those_that_torch_asks_for() -> None:
    held = pins()
    wanted = OF_TORCH[held["torch"]]
    assert {name: version for name, version in held.items() if name.startswith("nvidia-")} == wanted


def test_every_requirement_is_pinned_within_its_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    held = pins()
    for text in wanted:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        assert name in held, f"{name} is not pinned"
        assert SpecifierSet(str(requirement.specifier)).contains(held[name], prereleases=True), text
