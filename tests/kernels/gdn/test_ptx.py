"""Every CUDA kernel compiles for every supported capability and assembles without spills, at published widths."""

import pytest

from tests.kernels.gdn.ptx import CAPABILITIES, assembled, builds, ptxas

_REGISTER_FILE, _MOST_SHARED = 65_536, 48 * 1024


@pytest.mark.timeout(600)  # the first run over new sources compiles; later ones read what it found
@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda capability: f"sm_{capability[0]}{capability[1]}")
@pytest.mark.parametrize("name", builds())
def test_a_kernel_assembles_without_spills(name: str, capability: tuple[int, int]) -> None:
    found = assembled(name, capability)
    assert (found.stack, found.spill_stores, found.spill_loads) == (0, 0, 0)
    assert 0 < found.registers * builds()[name][2] <= _REGISTER_FILE
    assert found.shared <= _MOST_SHARED


def test_the_assembler_is_there() -> None:
    assert ptxas() is not None
