"""Products on blocks and decode kernels compile for every supported capability and assemble without spills."""

import pytest

from tests.kernels.cuda.builds import SOURCES, builds
from tests.kernels.cuda.ptx import CAPABILITIES, assembled, check


@pytest.mark.timeout(600)  # the first run over new sources compiles; later ones read what it found
@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda capability: f"sm_{capability[0]}{capability[1]}")
@pytest.mark.parametrize("name", builds())
def test_a_kernel_assembles_without_spills(name: str, capability: tuple[int, int]) -> None:
    build = builds()[name]
    check(assembled(name, build, capability, SOURCES), build.threads)
