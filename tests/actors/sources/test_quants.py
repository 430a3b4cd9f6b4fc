"""GGUF names: parts, quantisations, what a request means, and what lies nearest."""

import pytest

from neuron.actors.errors import MissingShard, QuantNotFound
from neuron.actors.sources.quants import choose, group_gguf, is_projector, nearest, normalised, quant_of
from neuron.actors.sources.selection import select

PARTS = tuple(f"m-Q4_K_M-0000{i}-of-00003.gguf" for i in (1, 2, 3))
LISTING = (*PARTS, "m-Q8_0.gguf", "sub/m-UD-Q4_K_XL.gguf", "mmproj-F16.gguf", "best-of-breed.gguf", "README.md")


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("m-Q4_K_M.gguf", "Q4_K_M"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("qwen3-8b-q8_0.gguf", "q8_0"),
        ("m-Q6_K_P.gguf", "Q6_K_P"),
        ("sub/m-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("m-IQ2_XXS.gguf", "IQ2_XXS"),
        ("m.BF16.gguf", "BF16"),
        ("m-f16.gguf", "f16"),
        ("Q5_K_M/m-00001-of-00002.gguf", "Q5_K_M"),
        ("m-MXFP4_MOE.gguf", "MXFP4_MOE"),
        ("best-of-breed.gguf", None),
        ("qwen3.gguf", None),
    ],
)
def test_quant_of_a_name(name: str, quant: str | None) -> None:
    assert quant_of(name) == quant


@pytest.mark.parametrize("asked", ["q4_k_m", "Q4_K_M", "q4km", "Q4-K-M", PARTS[1], PARTS[0].upper()])
def test_every_form_means_all_parts_in_order(asked: str) -> None:
    assert choose(group_gguf(LISTING), asked, "org/name").parts == PARTS


def test_single_files_and_prefixes() -> None:
    groups = group_gguf(LISTING)
    assert choose(groups, "q8_0", "org/name").parts == ("m-Q8_0.gguf",)
    assert choose(groups, "Q4_K_XL", "org/name").parts == ("sub/m-UD-Q4_K_XL.gguf",)
    assert choose(groups, "ud-q4_k_xl", "org/name").parts == ("sub/m-UD-Q4_K_XL.gguf",)
    assert choose(groups, "best-of-breed.gguf", "org/name").parts == ("best-of-breed.gguf",)


def test_no_projector_is_a_model() -> None:
    assert is_projector("sub/mmproj-F16.gguf")
    assert all("mmproj" not in part for group in group_gguf(LISTING) for part in group.parts)
    with pytest.raises(QuantNotFound):
        choose(group_gguf(LISTING), "f16", "org/name")
    assert select(LISTING, "org/name", quant="q8_0").projector == "mmproj-F16.gguf"


def test_the_nearest_is_named() -> None:
    with pytest.raises(QuantNotFound) as caught:
        choose(group_gguf(LISTING), "q6k", "org/name")
    assert caught.value.extra["available"] == ["Q4_K_M", "Q8_0", "UD-Q4_K_XL", "best-of-breed.gguf"]
    assert caught.value.extra["nearest"] == "Q4_K_M"
    assert nearest("q6k", ["Q4_K_M", "Q6_K_P", "Q6_K_L"]) in ("Q6_K_P", "Q6_K_L")
    assert nearest("q8", ["Q4_K_M", "Q8_0"]) == "Q8_0"
    assert nearest("x", []) is None


@pytest.mark.parametrize("asked", ["q4_k_m", PARTS[0], PARTS[2]])
def test_a_missing_part_is_named(asked: str) -> None:
    listing = [name for name in LISTING if name != PARTS[1]]
    with pytest.raises(MissingShard, match=PARTS[1]):
        choose(group_gguf(listing), asked, "org/name")


def test_two_files_of_one_quant_must_be_named() -> None:
    groups = group_gguf(["a-Q4_0.gguf", "b-Q4_0.gguf"])
    with pytest.raises(QuantNotFound) as caught:
        choose(groups, "q4_0", "org/name")
    assert caught.value.extra["available"] == ["a-Q4_0.gguf", "b-Q4_0.gguf"]
    assert choose(groups, "B-Q4_0.gguf", "org/name").parts == ("b-Q4_0.gguf",)


def test_the_default_is_the_usual_one_and_complete() -> None:
    assert choose(group_gguf(LISTING), None, "org/name").parts == PARTS
    broken = [name for name in LISTING if name != PARTS[0]]
    assert choose(group_gguf(broken), None, "org/name").parts == ("m-Q8_0.gguf",)
    assert choose(group_gguf(["x-Q2_K.gguf"]), None, "org/name").parts == ("x-Q2_K.gguf",)


@pytest.mark.parametrize(
    "name", ["m-00000-of-00002.gguf", "m-00003-of-00002.gguf", "m-00001-of-99999.gguf", "m-1-of-2.gguf"]
)
def test_what_only_looks_like_a_part(name: str) -> None:
    assert group_gguf([name])[0].parts == (name,)
    assert group_gguf([name])[0].missing == ()


def test_normalised() -> None:
    assert normalised("UD-Q4_K.m") == "udq4km"
