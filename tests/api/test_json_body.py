"""Strict JSON: hostile bodies are a 400 that says where, ordinary ones come through unchanged."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron.actors.errors import InvalidJson
from neuron.api import json_body
from neuron.api.json_body import decode_json, decode_object

HOSTILE = {
    "empty": b"",
    "blank": b"  \n",
    "cut": b'{"a": ',
    "trailing": b'{"a": 1} x',
    "array": b"[1]",
    "string": b'"x"',
    "null": b"null",
    "nan": b'{"a": NaN}',
    "infinity": b'{"a": [Infinity]}',
    "minus infinity": b'{"a": -Infinity}',
    "too large": b'{"a": 1e400}',
    "twenty digits": b'{"a": 12345678901234567890}',
    "5000 digits": b'{"a": ' + b"9" * 5000 + b"}",
    "duplicate key": b'{"a": 1, "a": 2}',
    "duplicate key below": b'{"b": {"a": 1, "a": 1}}',
    "bom": b"\xef\xbb\xbf{}",
    "utf-16": '{"a": 1}'.encode("utf-16"),
    "utf-32": '{"a": 1}'.encode("utf-32"),
    "invalid utf-8": b'{"a": "\xff"}',
    "overlong utf-8": b'{"a": "\xc0\x80"}',
    "raw surrogate": b'{"a": "\xed\xa0\x80"}',
    "raw nul": b'{"a": "\x00"}',
    "nul outside": b'{"a": 1}\x00',
    "raw newline": b'{"a": "\n"}',
    "lone surrogate": b'{"a": "\\ud83d"}',
    "lone surrogate key": b'{"\\ud83d": 1}',
    "reversed pair": b'{"a": "\\ude00\\ud83d"}',
    "many lists": b'{"a":[' + b"[]," * 300_000 + b"1]}",
    "many strings": b'{"a":[' + b'"",' * 300_000 + b"1]}",
    "many values behind a string without end": b"[" + b"1," * 300_000 + b'"' + b'\\"' * 1000,
    "a string without end of many marks": b'"' + b'\\",' * 2_000_000,
    "depth 65": b'{"a":' + b"[" * 64 + b"]" * 64 + b"}",
    "depth 100k": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "depth 100k objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_bodies_are_refused_with_a_sentence(body: bytes) -> None:
    with pytest.raises(InvalidJson) as caught:
        decode_object(body)
    assert caught.value.status == 400
    assert len(caught.value.message) < 300
    assert caught.value.message.isascii()


def test_the_place_of_a_surrogate_is_named() -> None:
    body = b'{"messages": [{"content": "fine"}, {"content": [{"text": "emoji \\ud83d"}]}]}'
    with pytest.raises(InvalidJson) as caught:
        decode_object(body)
    assert caught.value.param == "messages[1].content[0].text"


def test_a_whole_surrogate_pair_is_accepted() -> None:
    assert decode_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


@pytest.mark.parametrize("depth", [1, 63])
def test_depth_up_to_the_limit_is_accepted(depth: int) -> None:
    decode_object(b'{"a":' + b"[" * depth + b"]" * depth + b"}")


def test_nineteen_digits_and_escaped_nul_are_accepted() -> None:
    assert decode_object(b'{"a": -9223372036854775808, "b": "\\u0000"}') == {"a": -(2**63), "b": "\0"}


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(_json)
def test_what_a_client_can_encode_comes_back_equal(value: object) -> None:
    assert decode_json(json.dumps(value).encode()) == value
    assert decode_json(json.dumps(value, ensure_ascii=False).encode()) == value


@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_the_typed_error(body: bytes) -> None:
    try:
        decode_json(body)
    except InvalidJson:
        pass


def test_marks_inside_of_strings_are_no_values() -> None:
    text = 'a, [b], {c}, "d", \\, ' * 100_000
    body = json.dumps({"a": text, "b": [1, 2]}).encode()
    assert decode_object(body) == {"a": text, "b": [1, 2]}


def test_too_many_values_are_refused_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three bytes of text are a hundred of memory, and hold up every other request meanwhile."""
    monkeypatch.setattr(json_body, "_DECODER", None)
    with pytest.raises(InvalidJson, match="more than 262144 values"):
        decode_json(b"[" + b"[]," * 5_000_000 + b"1]")
