"""Strict JSON: decodes a request body, or refuses it with a 400 that says where. Called by routes only.

Refused: text that is not UTF-8, a byte-order mark, NaN and Infinity, numbers beyond a double, integers of more than
19 digits, duplicate keys (two parsers may read them differently), lone surrogates, nesting beyond 64, and more values
than any honest request has: three bytes of text may become a hundred of memory.
"""

import json
import math
import re
from typing import Any, NoReturn

from neuron.actors import limits
from neuron.actors.errors import InvalidJson

_BOM = b"\xef\xbb\xbf"
#: A whole string, or one that never ends; nothing is ever tried twice.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


def decode_json(body: bytes) -> Any:
    """Raises InvalidJson."""
    if body.startswith(_BOM):
        raise InvalidJson("The body starts with a byte-order mark; send plain UTF-8.")
    if count_values(body, limits.JSON_VALUES.value) > limits.JSON_VALUES.value:
        raise InvalidJson(f"The body holds more than {limits.JSON_VALUES.value} values.")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidJson(f"The body is not valid UTF-8 (byte {error.start}).") from None
    if not text.strip():
        raise InvalidJson("The body is empty; send a JSON object.")
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise InvalidJson(
            f"The body is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})."
        ) from None
    except RecursionError:
        raise InvalidJson(f"The body is nested deeper than {limits.JSON_DEPTH.value} levels.") from None
    _check_tree(value, escapes="\\u" in text)
    return value


def decode_object(body: bytes) -> dict[str, Any]:
    """Raises InvalidJson also when the body is some other JSON value."""
    value = decode_json(body)
    if not isinstance(value, dict):
        raise InvalidJson("The body must be a JSON object.")
    return value


def count_values(body: bytes, most: int) -> int:
    """How many values there are below the first, read from the text alone: its commas and opening brackets outside of
    strings, which are as many or more. Beyond `most` it stops counting."""
    if (whole := _marks(body)) <= most:
        return whole
    count = position = 0
    for string in _STRING.finditer(body):
        count += _marks(body[position : string.start()])
        if count > most:
            return count
        position = string.end()
    return count + _marks(body[position:])


def _marks(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _refuse_constant(text: str) -> NoReturn:
    raise InvalidJson(f"The body holds {text}, which is not JSON.")


def _integer(text: str) -> int:
    if len(text.lstrip("-")) > limits.JSON_INT_DIGITS.value:
        raise InvalidJson(f"The body holds an integer of more than {limits.JSON_INT_DIGITS.value} digits.")
    return int(text)


def _double(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise InvalidJson("The body holds a number too large for a double.")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise InvalidJson(f"The body holds the key {_shown(key)} twice in one object.")
            seen.add(key)
    return value


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_constant=_refuse_constant,
    parse_int=_integer,
    parse_float=_double,
)


def _check_tree(root: Any, *, escapes: bool) -> None:
    """Depth always; surrogates only when the text had `\\u` escapes (nothing else can bring one in)."""
    if escapes and isinstance(root, str):
        _check_text(root, "")
    pending: list[tuple[Any, int, str]] = [(root, 1, "")] if isinstance(root, dict | list) else []
    while pending:
        value, depth, where = pending.pop()
        if depth > limits.JSON_DEPTH.value:
            raise InvalidJson(f"The body is nested deeper than {limits.JSON_DEPTH.value} levels.")
        if escapes and isinstance(value, dict):
            for key in value:
                _check_text(key, f"a key of {where}" if where else "a key")
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            inside = isinstance(item, dict | list)
            if not (inside or (escapes and isinstance(item, str))):
                continue
            place = _place(where, key) if escapes else ""
            if inside:
                pending.append((item, depth + 1, place))
            else:
                _check_text(item, place)


def _place(where: str, key: str | int) -> str:
    if isinstance(key, int):
        return f"{where}[{key}]"
    return f"{where}.{key}" if where else key


def _check_text(text: str, where: str) -> None:
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        place = _shown(where) if where else "the body"
        raise InvalidJson(f"There is half of a surrogate pair in {place}.", param=_ascii(where) or None) from None


def _ascii(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode("ascii")[:200]


def _shown(text: str) -> str:
    return f"'{_ascii(text)}'"
