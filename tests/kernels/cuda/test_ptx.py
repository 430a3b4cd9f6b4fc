"""Products on blocks and decode kernels compile for every supported capability and assemble without spills."""

import pytest

from neuron.kernels.quant.cuda.unpack import BLOCK_KINDS
from tests.kernels.cuda.builds import SOURCES, builds
from tests.kernels.cuda.ptx import CAPABILITIES, assembled, check


@pytest.mark.timeout(600)  # the first run over new sources compiles; later ones read what it found
@pytest.mark.parametrize("name", builds())
def test_a_kernel_assembles_without_spills(name: str) -> None:
    build = builds()[name]
    check(assembled(name, build, SOURCES), build)


@pytest.mark.parametrize("kind", BLOCK_KINDS, ids=lambda kind: kind.name)
def test_every_type_of_block_has_its_kernels_assembled_for_every_capability(kind: object) -> None:
    """One row, eight rows, and the matrix as numbers."""
    name = getattr(kind, "name", "")
    for kernel in (f"product {name} 4x1", f"product {name} 1x8", f"numbers {name}"):
        assert builds()[kernel].capabilities == CAPABILITIES
