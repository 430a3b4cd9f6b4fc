"""Every CUDA kernel compiles for every supported capability and assembles without spills, at published widths."""

import pytest

from tests.kernels.cuda.ptx import CAPABILITIES, assembled, check, ptxas
from tests.kernels.gdn.ptx import SOURCES, builds


@pytest.mark.timeout(600)  # the first run over new sources compiles; later ones read what it found
@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda capability: f"sm_{capability[0]}{capability[1]}")
@pytest.mark.parametrize("name", builds())
def test_a_kernel_assembles_without_spills(name: str, capability: tuple[int, int]) -> None:
    build = builds()[name]
    check(assembled(name, build, capability, SOURCES), build.threads)


def test_the_assembler_is_there() -> None:
    assert ptxas() is not None
