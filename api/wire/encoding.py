"""JSON text for the wire: one line for every reader, always valid UTF-8. Used by the projections."""

import re
import secrets
from typing import Any

import msgspec

_encoder = msgspec.json.Encoder()
_SURROGATE = re.compile("[\ud800-\udfff]")
#: Characters that JSON leaves raw and that some readers of lines take for a line's end: NEL, U+2028, U+2029.
_LINE_ENDS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))

DONE = b"data: [DONE]\n\n"


def clean(text: str) -> str:
    """A lone surrogate becomes U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def json_text(text: str) -> bytes:
    """A JSON string, quotes included."""
    if text.isascii():
        return _encoder.encode(text)
    return _one_line(_encoder.encode(_SURROGATE.sub("\ufffd", text)))


def json_bytes(value: Any) -> bytes:
    """Any JSON value on one line; key order is kept."""
    try:
        encoded = _encoder.encode(value)
    except UnicodeEncodeError:
        encoded = _encoder.encode(_cleaned(value))
    return _one_line(encoded)


def frame(data: bytes) -> bytes:
    """One unnamed server-sent event."""
    return b"data: " + data + b"\n\n"


def named_frame(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode("ascii") + b"\ndata: " + data + b"\n\n"


def comment(text: str = "") -> bytes:
    """A line that readers of events skip; shows that the connection lives."""
    return b": " + text.encode("ascii", "replace").replace(b"\n", b" ") + b"\n\n"


def new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)


def _one_line(encoded: bytes) -> bytes:
    for raw, escaped in _LINE_ENDS:
        if raw in encoded:
            encoded = encoded.replace(raw, escaped)
    return encoded


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(str(key)): _cleaned(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(item) for item in value]
    return value
