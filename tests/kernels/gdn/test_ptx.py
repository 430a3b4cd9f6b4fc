"""Every CUDA kernel compiles for every supported capability and assembles without spills, at published widths."""

import pytest

from tests.kernels.cuda.ptx import assembled, check, ptxas
from tests.kernels.gdn.ptx import SOURCES, builds


@pytest.mark.timeout(600)  # the first run over new sources compiles; later ones read what it found
@pytest.mark.parametrize("name", builds())
def test_a_kernel_assembles_without_spills(name: str) -> None:
    build = builds()[name]
    check(assembled(name, build, SOURCES), build)


def test_the_assembler_is_there() -> None:
    assert ptxas() is not None
