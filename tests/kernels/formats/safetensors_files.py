"""Builders of safetensors files, sound ones and every kind of damaged one, byte by byte."""

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def raw_file(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def entry(begin: int, end: int, shape: Any = (2, 2), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def build(header: Mapping[str, Any], data: bytes) -> bytes:
    return raw_file(json.dumps(header).encode(), data)


def from_arrays(arrays: Mapping[str, np.ndarray], dtypes: Mapping[str, str] | None = None) -> bytes:
    """Sound file of `arrays`: float32 unless `dtypes` names another (then the array's bytes are taken as they are)."""
    header: dict[str, Any] = {}
    data = b""
    for name, array in arrays.items():
        dtype = (dtypes or {}).get(name, "F32")
        raw = array.astype("<f4").tobytes() if dtype == "F32" else array.tobytes()
        header[name] = entry(len(data), len(data) + len(raw), list(array.shape), dtype)
        data += raw
    return build(header, data)


def sound() -> bytes:
    return build({"a": entry(0, 16), "b": entry(16, 32), "__metadata__": {"format": "pt"}}, b"\0" * 32)


def _one(**changes: Any) -> bytes:
    return build({"a": entry(0, 16) | changes}, b"\0" * 16)


def _twice() -> bytes:
    one = json.dumps(entry(0, 16))
    return raw_file(f'{{"a": {one}, "a": {one}}}'.encode(), b"\0" * 16)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "seven bytes": lambda: b"\0" * 7,
    "length only": lambda: struct.pack("<Q", 10),
    "length of zero": lambda: struct.pack("<Q", 0),
    "length past the file": lambda: raw_file(b"{}", length=3),
    "length over the cap": lambda: raw_file(b"{}", length=(32 << 20) + 1),
    "length of 2^64-1": lambda: raw_file(b"{}", length=(1 << 64) - 1),
    "no JSON": lambda: raw_file(b"nonsense"),
    "a list": lambda: raw_file(b"[]"),
    "leading blank": lambda: raw_file(b" {}"),
    "not UTF-8": lambda: raw_file(b'{"\xff": 1}'),
    "deep nesting": lambda: raw_file(b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    "NaN": lambda: raw_file(b'{"a": NaN}'),
    "no tensor": lambda: raw_file(b"{}"),
    "name twice": _twice,
    "metadata is a list": lambda: build({"a": entry(0, 16), "__metadata__": []}, b"\0" * 16),
    "metadata of numbers": lambda: build({"a": entry(0, 16), "__metadata__": {"x": 1}}, b"\0" * 16),
    "field twice": lambda: raw_file(
        b'{"a": {"dtype": "F32", "shape": [4], "shape": [2, 2], "data_offsets": [0, 16]}}', b"\0" * 16
    ),
    "empty name": lambda: build({"": entry(0, 16)}, b"\0" * 16),
    "endless name": lambda: build({"a" * 2000: entry(0, 16)}, b"\0" * 16),
    "entry is a list": lambda: build({"a": []}, b""),
    "field missing": lambda: build({"a": {"dtype": "F32", "shape": [4]}}, b"\0" * 16),
    "field too many": lambda: _one(extra=1),
    "unknown type": lambda: _one(dtype="F4"),
    "type is a number": lambda: _one(dtype=1),
    "shape is a number": lambda: _one(shape=4),
    "shape of floats": lambda: _one(shape=[2.0, 2.0]),
    "shape of booleans": lambda: _one(shape=[True, 4]),
    "negative size": lambda: _one(shape=[-2, -2]),
    "shape that wraps": lambda: _one(shape=[1 << 32, 1 << 32, 4]),
    "size of 2^64": lambda: _one(shape=[1 << 64]),
    "nine dimensions": lambda: _one(shape=[1] * 8 + [4]),
    "offsets backwards": lambda: _one(data_offsets=[16, 0]),
    "one offset": lambda: _one(data_offsets=[16]),
    "negative offset": lambda: _one(data_offsets=[-16, 0]),
    "offset past the end": lambda: _one(data_offsets=[16, 32]),
    "fewer bytes than the shape": lambda: _one(data_offsets=[0, 12]),
    "more bytes than the shape": lambda: _one(shape=[3]),
    "overlap": lambda: build({"a": entry(0, 16), "b": entry(8, 24)}, b"\0" * 24),
    "same place": lambda: build({"a": entry(0, 16), "b": entry(0, 16)}, b"\0" * 16),
    "hole": lambda: build({"a": entry(0, 16), "b": entry(20, 36)}, b"\0" * 36),
    "hole at the start": lambda: build({"a": entry(4, 20)}, b"\0" * 20),
    "truncated": lambda: sound()[:-1],
    "cut in half": lambda: sound()[: len(sound()) // 2],
    "bytes left over": lambda: sound() + b"\0",
    "too many tensors": lambda: build(
        {f"t{i}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for i in range(100_001)}, b""
    ),
}
