"""A short run of every fuzz target, its corpus as it is, and the proof that a planted defect would be found."""

import pytest

from neuron.kernels.formats.errors import FormatError, FormatKind
from tests.fuzz.__main__ import own
from tests.fuzz.mutate import Mutator
from tests.fuzz.targets import TARGETS, Target

COUNTS = {"parser": 5000}
OTHERS = 10_000


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_the_corpus_is_read(name: str) -> None:
    accepted = [TARGETS[name].run(data) for data in TARGETS[name].corpus]
    assert any(accepted)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_only_the_typed_error_leaves(name: str) -> None:
    figures = own(TARGETS[name], COUNTS.get(name, OTHERS), seed=1)
    assert isinstance(figures["accepted"], int)
    # Mutations that all fail at the first byte, or never at all, would prove little.
    assert 0 < figures["accepted"]


def test_mutations_are_the_seeds() -> None:
    first, second = (Mutator([b"abcdef" * 20], seed=4) for _ in range(2))
    assert [first.make() for _ in range(200)] == [second.make() for _ in range(200)]


def test_a_planted_defect_is_found() -> None:
    """Negative control: a reader that trusts one length, as the readers behind several published CVEs did."""

    def trusting(data: bytes) -> bool:
        if len(data) < 12 or data[:4] != b"GGUF":
            raise_typed()
        claimed = int.from_bytes(data[8:16], "little")
        if claimed > 2**31:
            raise MemoryError("planted")
        return True

    def raise_typed() -> None:
        raise FormatError(FormatKind.INVALID_GGUF, "short")

    def run(data: bytes) -> bool:
        try:
            return trusting(data)
        except FormatError:
            return False

    with pytest.raises(MemoryError, match="planted"):
        own(Target("gguf", run, TARGETS["gguf"].tokens), 10_000, seed=1)
