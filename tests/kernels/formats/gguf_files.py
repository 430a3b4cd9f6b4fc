"""Builders of GGUF files, sound ones and every kind of damaged one, byte by byte. No library writes them."""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

U32, STRING, ARRAY, U64 = 4, 8, 9, 10


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def typed(value: Any) -> bytes:
    """A metadata value with its type number: bool, int (u32), float (f32), str, or a list of one of these."""
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", U32, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", STRING) + text(value)
    items = [typed(item) for item in value]
    kind = items[0][:4] if items else struct.pack("<I", U32)
    return struct.pack("<I", ARRAY) + kind + struct.pack("<Q", len(items)) + b"".join(item[4:] for item in items)


@dataclass
class Tensor:
    """`dims` as in the file (row length first); `data` as stored; `offset` None means the next free place."""

    name: str | bytes
    dims: Sequence[int]
    data: bytes
    kind: int = 0
    offset: int | None = None
    n_dims: int | None = None


def tensor(name: str, array: np.ndarray, kind: int = 0) -> Tensor:
    """float32 `array`, rows first."""
    return Tensor(name, tuple(reversed(array.shape)), array.astype("<f4").tobytes(), kind)


@dataclass
class GgufBuilder:
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tensors: Sequence[Tensor] = ()
    magic: bytes = b"GGUF"
    version: bytes = struct.pack("<I", 3)
    alignment: int = 32
    kv_count: int | None = None
    tensor_count: int | None = None
    #: Encoded key-value pairs after those of `metadata`.
    raw_kv: bytes = b""
    raw_kv_count: int = 0
    trailing: bytes = b""

    def build(self) -> bytes:
        pairs = b"".join(text(key) + typed(value) for key, value in self.metadata.items()) + self.raw_kv
        kv_count = len(self.metadata) + self.raw_kv_count if self.kv_count is None else self.kv_count
        count = len(self.tensors) if self.tensor_count is None else self.tensor_count
        table, data = b"", b""
        for entry in self.tensors:
            data += b"\0" * (-len(data) % self.alignment)
            offset = len(data) if entry.offset is None else entry.offset
            data += entry.data
            n_dims = len(entry.dims) if entry.n_dims is None else entry.n_dims
            table += text(entry.name) + struct.pack("<I", n_dims)
            table += b"".join(struct.pack("<Q", size) for size in entry.dims)
            table += struct.pack("<IQ", entry.kind, offset)
        head = self.magic + self.version + struct.pack("<QQ", count, kv_count) + pairs + table
        return head + b"\0" * (-len(head) % self.alignment) + data + self.trailing


def _one(**changes: Any) -> GgufBuilder:
    entry = Tensor("a.weight", (4, 2), b"\0" * 32)
    for name, value in changes.items():
        setattr(entry, name, value)
    return GgufBuilder({"general.architecture": "llama"}, [entry])


def _kv(raw: bytes) -> GgufBuilder:
    return GgufBuilder({"general.architecture": "llama"}, raw_kv=text("x") + raw, raw_kv_count=1)


def sound() -> bytes:
    return _one().build()


HOSTILE: dict[str, Callable[[], bytes]] = {
    "empty magic": lambda: GgufBuilder(magic=b"GGML").build(),
    "four bytes": lambda: b"GGUF",
    "cut in the counts": lambda: sound()[:20],
    "cut in the metadata": lambda: sound()[:40],
    "cut in the table": lambda: sound()[:90],
    "cut in the data": lambda: sound()[:-1],
    "version 0": lambda: GgufBuilder(version=struct.pack("<I", 0)).build(),
    "version 1": lambda: GgufBuilder(version=struct.pack("<I", 1)).build(),
    "version 4": lambda: GgufBuilder(version=struct.pack("<I", 4)).build(),
    "big-endian": lambda: GgufBuilder(version=struct.pack(">I", 3)).build(),
    "2^63 keys": lambda: GgufBuilder(kv_count=1 << 63).build(),
    "more keys than there are": lambda: GgufBuilder({"a": 1}, kv_count=2).build(),
    "one key over the cap": lambda: GgufBuilder(kv_count=64 * 1024 + 1).build(),
    "2^63 tensors": lambda: GgufBuilder(tensor_count=1 << 63).build(),
    "one tensor over the cap": lambda: GgufBuilder(tensor_count=100_001).build(),
    "key twice": lambda: GgufBuilder({"x": 1}, raw_kv=text("x") + typed(2), raw_kv_count=1).build(),
    "key longer than the file": lambda: GgufBuilder(raw_kv=struct.pack("<Q", 1 << 40), raw_kv_count=1).build(),
    "key of 2^64-1": lambda: GgufBuilder(raw_kv=struct.pack("<Q", (1 << 64) - 1), raw_kv_count=1).build(),
    "key not UTF-8": lambda: GgufBuilder(raw_kv=text(b"\xff\xfe") + typed(1), raw_kv_count=1).build(),
    "value not UTF-8": lambda: _kv(struct.pack("<I", STRING) + text(b"\xff")).build(),
    "string longer than the file": lambda: _kv(struct.pack("<IQ", STRING, 1 << 20)).build(),
    "string over the cap": lambda: _kv(struct.pack("<IQ", STRING, (16 << 20) + 1)).build(),
    "unknown value type": lambda: _kv(struct.pack("<II", 13, 0)).build(),
    "unknown array type": lambda: _kv(struct.pack("<IIQ", ARRAY, 99, 0)).build(),
    "array of arrays": lambda: _kv(struct.pack("<IIQ", ARRAY, ARRAY, 1)).build(),
    "array over the cap": lambda: _kv(struct.pack("<IIQ", ARRAY, 0, 4_000_001)).build(),
    "array longer than the file": lambda: _kv(struct.pack("<IIQ", ARRAY, U64, 3_000_000)).build(),
    "array of 2^61 numbers": lambda: _kv(struct.pack("<IIQ", ARRAY, U64, 1 << 61)).build(),
    "string array longer than the file": lambda: _kv(struct.pack("<IIQ", ARRAY, STRING, 3_000_000)).build(),
    "boolean of 2": lambda: _kv(struct.pack("<IB", 7, 2)).build(),
    "boolean array with 2": lambda: _kv(struct.pack("<IIQB", ARRAY, 7, 1, 2)).build(),
    "alignment 0": lambda: GgufBuilder({"general.alignment": 0}).build(),
    "alignment 3": lambda: GgufBuilder({"general.alignment": 3}).build(),
    "alignment 2^31": lambda: GgufBuilder({"general.alignment": 1 << 31}).build(),
    "alignment as text": lambda: GgufBuilder({"general.alignment": "32"}).build(),
    "alignment true": lambda: GgufBuilder({"general.alignment": True}).build(),
    "no dimension": lambda: _one(dims=(), n_dims=0).build(),
    "five dimensions": lambda: _one(dims=(1, 1, 1, 1, 1)).build(),
    "2^32-1 dimensions": lambda: _one(n_dims=(1 << 32) - 1).build(),
    "dimension of zero": lambda: _one(dims=(4, 0)).build(),
    "2^32 x 2^32": lambda: _one(dims=(1 << 32, 1 << 32)).build(),
    "2^63 x 2": lambda: _one(dims=(1 << 63, 2)).build(),
    "2^62 elements of f32": lambda: _one(dims=(1 << 62,)).build(),
    "larger than the file": lambda: _one(dims=(4, 3)).build(),
    "unknown tensor type": lambda: _one(kind=4).build(),
    "tensor type 2^32-1": lambda: _one(kind=(1 << 32) - 1).build(),
    "half a block": lambda: _one(kind=2, dims=(16, 2)).build(),
    "offset off the grid": lambda: _one(offset=8).build(),
    "offset past the end": lambda: _one(offset=1 << 40).build(),
    "offset that wraps": lambda: _one(offset=(1 << 64) - 32).build(),
    "a hole": lambda: _one(offset=32, data=b"\0" * 96).build(),
    "an overlap": lambda: GgufBuilder(
        tensors=[Tensor("a", (16,), b"\0" * 64), Tensor("b", (8,), b"\0" * 32, offset=32)]
    ).build(),
    "tensor twice": lambda: GgufBuilder(tensors=[Tensor("a", (8,), b"\0" * 32), Tensor("a", (8,), b"\0" * 32)]).build(),
    "name longer than the file": lambda: GgufBuilder(raw_kv=struct.pack("<Q", 60_000), tensor_count=1).build(),
    "name not UTF-8": lambda: GgufBuilder(tensors=[Tensor(b"\xc3\x28", (8,), b"\0" * 32)]).build(),
}
#: Sound files of a kind that is not read: another code.
UNSUPPORTED: dict[str, Callable[[], bytes]] = {
    "IQ4_XS": lambda: _one(kind=23, dims=(256,), data=b"\0" * 136).build(),
    "F64": lambda: _one(kind=28, dims=(4,), data=b"\0" * 32).build(),
}
