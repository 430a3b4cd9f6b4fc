"""Scripts: what is accepted, what is refused by name, and the vocabulary that follows."""

from pathlib import Path

import pytest

from neuron.actors.scripted import BYTE_TOKENS, Literal, ScriptError, ScriptVocabulary, parse_script, read_script
from tests.harness.scripts import EOS, fault, script, script_json, turn


def test_the_contracts_example() -> None:
    content = b"""{
      "context_length": 4096, "capabilities": ["text"], "chat_template": null,
      "special_tokens": ["<|im_end|>"],
      "added_tokens": ["<think>", "</think>", "<tool_call>", "</tool_call>"],
      "eos_token": "<|im_end|>", "vocab_size": null,
      "turns": [ {"when": null, "emit": ["The quick br", "own", {"bytes": "f09f8cab"}, "<think>", {"eos": true}],
          "repeat": false, "delay_ms": 0, "prefill_ms_per_token": 0,
          "fault": {"at": 3, "phase": "decode", "kind": "device", "text": "...", "times": 1} } ] }"""
    parsed = parse_script(content)
    vocabulary = ScriptVocabulary(parsed)
    ids = [vocabulary.entry_id(entry) for entry in parsed.turns[0].emit]
    assert ids == [261, 262, 263, 257, 256]
    assert [vocabulary.token_bytes(i) for i in ids] == [
        b"The quick br",
        b"own",
        b"\xf0\x9f\x8c\xab",
        b"<think>",
        b"<|im_end|>",
    ]
    assert vocabulary.special_ids == {256}
    assert vocabulary.eos_id == 256
    assert vocabulary.size == vocabulary.row_size == 264


def test_ids_follow_the_file_and_repeat_nothing() -> None:
    parsed = script(turn("ab", "a", "ab", "é"), turn("é", "cd"), special_tokens=["<s>"], eos_token="<s>")
    vocabulary = ScriptVocabulary(parsed)
    assert [vocabulary.entry_id(entry) for entry in ("ab", "a", "é", "cd")] == [257, ord("a"), 258, 259]
    assert vocabulary.decode([257, ord("a"), 258]) == "abaé".encode()


def test_bytes_spell_a_marker_as_ordinary_text() -> None:
    literal = Literal(bytes=b"<think>".hex())
    parsed = script(turn("<think>", {"bytes": b"<think>".hex()}), added_tokens=["<think>"])
    vocabulary = ScriptVocabulary(parsed)
    assert vocabulary.entry_id("<think>") != vocabulary.entry_id(literal)
    assert vocabulary.token_bytes(vocabulary.entry_id(literal)) == b"<think>"


def test_an_unlisted_eos_token_becomes_special() -> None:
    vocabulary = ScriptVocabulary(script(turn("x"), special_tokens=["<a>"], added_tokens=["<b>"], eos_token="<e>"))
    assert vocabulary.named == {"<a>": 256, "<e>": 257, "<b>": 258}
    assert vocabulary.special_ids == {256, 257}


def test_an_added_token_may_be_the_eos_token() -> None:
    vocabulary = ScriptVocabulary(script(turn("x"), added_tokens=["<e>"], eos_token="<e>"))
    assert vocabulary.eos_id == BYTE_TOKENS
    assert vocabulary.special_ids == frozenset()


def test_padding() -> None:
    vocabulary = ScriptVocabulary(script(turn("xy"), vocab_size=248320))
    assert (vocabulary.size, vocabulary.row_size) == (258, 248320)


@pytest.mark.parametrize("token_id", [-1, 258, 248319])
def test_ids_outside_the_vocabulary(token_id: int) -> None:
    with pytest.raises(IndexError):
        ScriptVocabulary(script(turn("xy"), vocab_size=248320)).token_bytes(token_id)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "not valid"),
        (b"[]", "not valid"),
        (b"{}", "turns"),
        (b"\xff\xfe{}", "not valid"),
        (b"[" * 100_000, "not valid"),
        (script_json(turn("x"), colour="red"), "colour"),
        (script_json(turn("x", colour="red")), "colour"),
        (script_json(turn(1)), "emit"),  # type: ignore[arg-type]
        (script_json(turn({"bytes": "f0", "eos": True})), "emit"),
        (script_json(turn({})), "emit"),
        (script_json(turn({"bytes": "xyz"})), "turns[0]"),
        (script_json(turn("x"), turn("x", delay_ms=-1)), "turns[1]"),
        (script_json(turn("x", prefill_ms_per_token=1e12)), "prefill_ms_per_token"),
        (script_json(turn("x", fault=fault("fire"))), "kind"),
        (script_json(turn("x", fault=fault("kill", at=-1))), "fault.at"),
        (script_json(turn("x", fault=fault("kill", phase="lunch"))), "phase"),
        (script_json(turn("x"), vocab_size=256), "vocab_size"),
        (script_json(turn("x"), vocab_size=1 << 30), "vocab_size"),
        (script_json(turn("x"), context_length=0), "context_length"),
        (script_json(turn("x"), special_tokens=["a", "a"]), "twice"),
        (script_json(turn("x"), special_tokens=[""]), "empty"),
    ],
)
def test_refused_by_name(content: bytes, named: str) -> None:
    with pytest.raises(ScriptError, match="not valid") as caught:
        parse_script(content)
    assert named in str(caught.value)


def test_files_that_cannot_be_read_do_not_tell_where_they_are(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(ScriptError) as caught:
            read_script(path)
        assert str(tmp_path) not in str(caught.value)


def test_eos_entry() -> None:
    vocabulary = ScriptVocabulary(script(turn("x", EOS)))
    assert vocabulary.entry_id(Literal(eos=True)) == vocabulary.eos_id
