"""What a listing is: GGUF, safetensors, both, or nothing; placements that are possible with each."""

import pytest

from neuron.actors.errors import MissingShard, PreflightError, QuantNotFound, TpRequiresSafetensors
from neuron.actors.sources.artifact import Format
from neuron.actors.sources.selection import check_numbering, select

DENSE = ("config.json", "model.safetensors", "tokenizer.json")
GGUF = ("m-Q4_K_M.gguf", "m-Q8_0.gguf")
MIXED = DENSE + GGUF


@pytest.mark.parametrize(
    ("names", "quant", "ranks", "format", "in_situ"),
    [
        (DENSE, None, None, Format.SAFETENSORS, None),
        (DENSE, None, 2, Format.SAFETENSORS, None),
        (DENSE, "BF16", None, Format.SAFETENSORS, "bf16"),
        (DENSE, "bf16", 2, Format.SAFETENSORS, "bf16"),
        (GGUF, None, None, Format.GGUF, None),
        (GGUF, "q8_0", 1, Format.GGUF, None),
        (MIXED, None, None, Format.SAFETENSORS, None),
        (MIXED, "q8_0", None, Format.GGUF, None),
        (MIXED, "f16", 2, Format.SAFETENSORS, "f16"),
        (DENSE, "q4k", None, Format.SAFETENSORS, "q4_k"),
        (DENSE, "Q4_K_M", None, Format.SAFETENSORS, "q4_k"),
        (MIXED, "q4_k_m", None, Format.GGUF, None),
        (MIXED, "q4_k_m", 2, Format.SAFETENSORS, "q4_k"),
        (MIXED, "Q6K", None, Format.SAFETENSORS, "q6_k"),
        (MIXED, "f16", None, Format.SAFETENSORS, "f16"),
    ],
)
def test_placements(
    names: tuple[str, ...], quant: str | None, ranks: int | None, format: Format, in_situ: str | None
) -> None:
    selection = select(names, "org/name", quant=quant, tensor_parallel=ranks)
    assert (selection.format, selection.quant) == (format, in_situ)


def test_refusals() -> None:
    with pytest.raises(TpRequiresSafetensors):
        select(GGUF, "org/name", tensor_parallel=2)
    with pytest.raises(QuantNotFound) as caught:
        select(DENSE, "org/name", quant="iq3_xxs")
    assert "bf16" in str(caught.value.extra["available"])
    with pytest.raises(QuantNotFound):
        select(MIXED, "org/name", quant="q1_k", tensor_parallel=2)
    with pytest.raises(PreflightError, match="config"):
        select(("model.safetensors",), "org/name")


def test_a_mixture_is_named_in_a_note() -> None:
    assert "q4_k" in select(DENSE, "org/name", quant="Q4_K_M").notes[0]
    assert select(DENSE, "org/name", quant="Q4_K").notes == ()


def test_only_needed_files() -> None:
    names = (*DENSE, "README.md", "pytorch_model.bin", "adapter_model.safetensors", "consolidated.safetensors")
    selection = select(names, "org/name")
    assert selection.weights == ("model.safetensors",)
    assert selection.extras == ("config.json", "tokenizer.json")
    assert select((*GGUF, "tokenizer.json", "generation_config.json"), "org/name").extras == ("generation_config.json",)


def test_shards_without_an_index() -> None:
    shards = tuple(f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3))
    selection = select(("config.json", *shards), "org/name")
    assert selection.weights == shards
    assert selection.notes
    check_numbering(shards, "org/name")
    check_numbering(("model.safetensors", "x-of-y.safetensors"), "org/name")
    with pytest.raises(MissingShard, match=shards[1]):
        check_numbering((shards[0], shards[2]), "org/name")
