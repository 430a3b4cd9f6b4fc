"""Tokenizers from tokenizer.json and its neighbours, against the library's own ids and texts."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from neuron.actors.errors import InvalidTokenizer
from neuron.actors.sources.artifact import Format, ModelArtifact
from neuron.actors.text.build import TextModel, load_text_model
from neuron.actors.text.detokenizer import StreamDetokenizer
from neuron.actors.text.hf_tokenizer import hf_tokenizer
from neuron.actors.text.tokenizer import SegmentTokenizer
from neuron.actors.text.types import Segment
from tests.actors.text.helpers import SHARED

QWEN = SHARED / "qwen3-tokenizer"
TEXT = st.text(st.characters(codec="utf-8", max_codepoint=0x2FFFF), max_size=40)


def sentencepiece(prepend: str = "legacy") -> Tokenizer:
    """Unknown, begin, end, bytes, letters and a few words, in the three published forms of the blank in front."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256)), "\u2581"]
    words += [*"Iamtesing", "\u2581I", "\u2581a", "\u2581am", "\u2581t", "te", "st", "in", "ing", "\u2581te"]
    merges = [("\u2581", "I"), ("\u2581", "a"), ("\u2581a", "m"), ("\u2581", "t"), ("\u2581t", "e"), ("s", "t")]
    merges += [("i", "n"), ("in", "g"), ("t", "e")]
    ids = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if prepend == "legacy":
        steps = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        tokenizer.normalizer = normalizers.Sequence(steps)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=False)
    strip = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(strip)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in ("<unk>", "<s>", "</s>")])
    return tokenizer


def byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({text: index for index, text in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("<row>", special=False, normalized=False)])
    tokenizer.add_special_tokens([AddedToken("<|end|>", normalized=False), AddedToken("<|other|>", normalized=False)])
    return tokenizer


def saved(tokenizer: Tokenizer, directory: Path, **files: Any) -> SegmentTokenizer:
    tokenizer.save(str(directory / "tokenizer.json"))
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return hf_tokenizer(directory, model_id="test/model")


def streamed(tokenizer: SegmentTokenizer, ids: list[int]) -> list[str]:
    detokenizer = tokenizer.detokenizer()
    return [*(detokenizer.push(index) for index in ids), detokenizer.flush()]


@pytest.mark.parametrize("prepend", ["legacy", "first", "always", "never"])
def test_blanks_at_token_edges(tmp_path: Path, prepend: str) -> None:
    native = sentencepiece(prepend)
    tokenizer = saved(native, tmp_path)
    ids = native.encode("I am testing it", add_special_tokens=False).ids
    assert tokenizer.encode([Segment("I am testing it", control=False)]) == ids
    assert "".join(streamed(tokenizer, ids)) == native.decode(ids) == "I am testing it"


@pytest.mark.parametrize("prepend", ["legacy", "first", "always", "never"])
@pytest.mark.parametrize("text", ["<s>I am</s>I am", " I", "<s> I", "am<s>am", "é</s>\n", ""])
def test_control_text_gives_the_librarys_ids(tmp_path: Path, prepend: str, text: str) -> None:
    native = sentencepiece(prepend)
    tokenizer = saved(native, tmp_path)
    assert tokenizer.encode([Segment(text, control=True)]) == native.encode(text, add_special_tokens=False).ids


def test_begin_token_once(tmp_path: Path) -> None:
    tokenizer = saved(sentencepiece(), tmp_path, tokenizer_config={"bos_token": "<s>", "add_bos_token": True})
    begin = tokenizer.token_id("<s>")
    assert tokenizer.bos_token == "<s>"
    assert tokenizer.encode([Segment("<s>I am", control=True)]).count(begin or 0) == 1
    assert tokenizer.encode([Segment("I am", control=True)]).count(begin or 0) == 0
    assert tokenizer.encode([Segment("<s>I am", control=False)]).count(begin or 0) == 0


def test_added_tokens_that_are_not_special_give_text(tmp_path: Path) -> None:
    tokenizer = saved(byte_level(), tmp_path)
    ids = tokenizer.encode([Segment("<row>A<row>B<|end|>", control=True)])
    assert len(ids) == 5
    assert "".join(streamed(tokenizer, ids)) == "<row>A<row>B"
    assert tokenizer.token_bytes(ids[-1]) == b"<|end|>"


def model_at(directory: Path) -> TextModel:
    artifact = ModelArtifact(
        model_id="test/model",
        source_id="dir:test/model",
        format=Format.SAFETENSORS,
        directory=directory,
        weight_files=(directory / "model.safetensors",),
    )
    return load_text_model(artifact, use_chat_template=True)


def test_all_end_tokens_count(tmp_path: Path) -> None:
    saved(
        byte_level(),
        tmp_path,
        config={"eos_token_id": 5, "text_config": {"eos_token_id": [11]}},
        generation_config={"eos_token_id": [5, 7], "temperature": 0.6, "top_k": 20, "top_p": 0.95, "do_sample": True},
        tokenizer_config={"eos_token": {"content": "<|end|>"}, "pad_token": "<|other|>"},
    )
    model = model_at(tmp_path)
    assert model.tokenizer.eos_ids == {5, 7, 11, model.tokenizer.token_id("<|end|>")}
    assert (model.defaults.temperature, model.defaults.top_k, model.defaults.top_p) == (0.6, 20, 0.95)
    assert model.special_tokens == {"bos_token": "", "eos_token": "<|end|>", "pad_token": "<|other|>"}
    assert not model.own_template


def test_end_tokens_without_any_config(tmp_path: Path) -> None:
    native = byte_level()
    native.add_special_tokens([AddedToken("<|im_end|>", normalized=False)])
    tokenizer = saved(native, tmp_path)
    assert tokenizer.eos_ids == {tokenizer.token_id("<|im_end|>"), tokenizer.token_id("<|end|>")}
    named = saved(native, tmp_path, special_tokens_map={"eos_token": "<|other|>", "bos_token": {"content": "<|end|>"}})
    assert named.eos_ids == {named.token_id("<|other|>")}
    assert named.bos_token == "<|end|>"


@pytest.mark.parametrize(
    "generation",
    [
        {"temperature": "hot", "top_k": -1, "top_p": 7, "min_p": True, "eos_token_id": "x"},
        {"temperature": None, "eos_token_id": None},
        [],
        "x",
    ],
)
def test_unusable_defaults_are_left_out(tmp_path: Path, generation: object) -> None:
    saved(byte_level(), tmp_path, generation_config=generation)
    defaults = model_at(tmp_path).defaults
    assert (defaults.temperature, defaults.top_k, defaults.top_p, defaults.min_p) == (None, None, None, None)


def test_greedy_models_default_to_temperature_zero(tmp_path: Path) -> None:
    saved(byte_level(), tmp_path, generation_config={"do_sample": False, "temperature": 0.6})
    assert model_at(tmp_path).defaults.temperature == 0.0


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b'{"model": {}}', b'{"added_tokens": [{}], "model": 3}', b"[" * 100_000, b"\xff\xfe"],
)
def test_a_corrupt_file_is_typed(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(InvalidTokenizer):
        hf_tokenizer(tmp_path, model_id="test/model")


def test_a_missing_or_huge_file_is_typed(tmp_path: Path) -> None:
    with pytest.raises(InvalidTokenizer):
        hf_tokenizer(tmp_path, model_id="test/model")
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(200 << 20)
    with pytest.raises(InvalidTokenizer):
        hf_tokenizer(tmp_path, model_id="test/model")


@settings(max_examples=200, deadline=None)
@given(text=TEXT)
def test_streams_join_to_the_whole(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    natives = (byte_level(), sentencepiece(), sentencepiece("first"))
    # Typed control text stays ordinary here, where the library takes it for a token.
    assume(not any(token.content in text for native in natives for token in native.get_added_tokens_decoder().values()))
    for native in natives:
        tokenizer = saved(native, tmp_path_factory.mktemp("model"))
        ids = tokenizer.encode([Segment(text, control=False)])
        assert ids == native.encode(text, add_special_tokens=False).ids
        parts = streamed(tokenizer, ids)
        assert "".join(parts) == native.decode(ids)
        assert "\ufffd" not in "".join(parts).replace(text, "")


@pytest.mark.parametrize("pieces", [["caf", b"\xc3", b"\xa9", " noir"], ["x", b"\xf0\x9f", b"\xa6", b"\x99", "y"]])
def test_a_character_over_several_tokens_comes_out_once_whole(pieces: list[str | bytes]) -> None:
    data = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    detokenizer = StreamDetokenizer(lambda index: data[index])
    parts = [detokenizer.push(index) for index in range(len(data))]
    assert "\ufffd" not in "".join(parts)
    assert "".join(parts) == b"".join(data).decode()


def test_an_incomplete_character_at_the_end_is_replaced() -> None:
    detokenizer = StreamDetokenizer(lambda _index: b"\xf0\x9f")
    assert detokenizer.push(0) == ""
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


@pytest.mark.skipif(not QWEN.exists(), reason="the tokenizer file (11 MB) is not here")
def test_the_real_qwen3_tokenizer() -> None:
    tokenizer = hf_tokenizer(QWEN, model_id="qwen/qwen3")
    native = Tokenizer.from_file(str(QWEN / "tokenizer.json"))
    text = "<|im_start|>user\nHello wörld 12345 é 🦙<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nx"
    assert tokenizer.encode([Segment(text, control=True)]) == native.encode(text, add_special_tokens=False).ids
    held = {tokenizer.token_id(text) for text in tokenizer.control.texts}
    assert not held & set(tokenizer.encode([Segment(text, control=False)]))
    assert "".join(streamed(tokenizer, tokenizer.encode([Segment(text, control=False)]))) == text.replace("é", "é")
    assert tokenizer.token_id("<|im_end|>") in tokenizer.eos_ids
    assert tokenizer.token_id("<tool_call>") == 151657
    assert not tokenizer.detokenizer().push(151667) == ""
