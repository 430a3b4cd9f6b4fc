"""Parser of a GGUF header (metadata and tensor table), versions 2 and 3. Every length is checked before it is used.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Caps and classes of damage: docs of faults.
"""

import math
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

import msgspec
import numpy as np

from neuron.kernels.formats.errors import FormatError, FormatKind, HeaderIncomplete, shown
from neuron.kernels.formats.ggml_types import GgmlType, ggml_type

MetadataValue: TypeAlias = int | float | bool | str | list[int] | list[float] | list[bool] | list[str]
Metadata: TypeAlias = Mapping[str, MetadataValue]

MAX_KV = 64 * 1024
MAX_TENSORS = 100_000
MAX_STRING = 16 << 20
MAX_ARRAY = 4_000_000
#: Over all arrays together, so that many arrays cannot add up to what one may not be.
MAX_ARRAY_TOTAL = 16_000_000
MAX_NAME = 65_535
MAX_DIMS = 4
MAX_ELEMENTS = 1 << 48
MAX_ALIGNMENT = 1 << 20

_MAGIC = b"GGUF"
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {0: "B", 1: "b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "B", 10: "<Q", 11: "<q", 12: "<d"}


class GgufTensor(msgspec.Struct, frozen=True):
    """`shape` rows first (the file's dimensions reversed); `offset` from the file's start; `part` of a split file."""

    name: str
    ggml_type: GgmlType
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    part: int = 0


class GgufHeader(msgspec.Struct, frozen=True):
    version: int
    alignment: int
    metadata: Metadata
    tensors: Mapping[str, GgufTensor]
    data_offset: int


def invalid(file: str, message: str) -> FormatError:
    return FormatError(FormatKind.INVALID_GGUF, f"{file}: {message}")


class _Cursor:
    """Reads the header from `buffer`, the first bytes of a file of `file_size`."""

    def __init__(self, buffer: memoryview, file_size: int, file: str) -> None:
        self.buffer = buffer
        self.file_size = file_size
        self.file = file
        self.position = 0
        self.array_elements = 0

    def take(self, count: int) -> int:
        """Start of the next `count` bytes, which are in the buffer."""
        start = self.position
        end = start + count
        if end > self.file_size:
            raise invalid(self.file, "ends inside its header; it is truncated or a length in it is wrong.")
        if end > len(self.buffer):
            raise HeaderIncomplete(end)
        self.position = end
        return start

    def number(self, code: str) -> int:
        start = self.take(struct.calcsize(code))
        value: int = struct.unpack_from(code, self.buffer, start)[0]
        return value

    def text(self, limit: int, what: str) -> str:
        length = self.number("<Q")
        if length > limit:
            raise invalid(self.file, f"{what} of {length} bytes is longer than {limit}.")
        start = self.take(length)
        try:
            return str(self.buffer[start : start + length], "utf-8")
        except UnicodeDecodeError as error:
            raise invalid(self.file, f"{what} is not UTF-8.") from error


def parse_gguf_header(buffer: memoryview, file_size: int, file: str) -> GgufHeader:
    """Header of a GGUF file of `file_size` bytes from its first bytes; `file` is its name for messages.

    Raises FormatError (invalid_gguf, unsupported_model) or, when `buffer` is too short, HeaderIncomplete.
    """
    cursor = _Cursor(buffer, file_size, file)
    version = _version(cursor)
    tensor_count = cursor.number("<Q")
    kv_count = cursor.number("<Q")
    if kv_count > MAX_KV:
        raise invalid(file, f"{kv_count} metadata keys are more than {MAX_KV}.")
    if tensor_count > MAX_TENSORS:
        raise invalid(file, f"{tensor_count} tensors are more than {MAX_TENSORS}.")
    metadata: dict[str, MetadataValue] = {}
    for _ in range(kv_count):
        key = cursor.text(MAX_NAME, "a metadata key")
        if not key:
            raise invalid(file, "holds a metadata key without a name.")
        if key in metadata:
            raise invalid(file, f"the metadata key {shown(key)} is there twice.")
        metadata[key] = _value(cursor, key)
    alignment = _alignment(metadata, file)
    table = [_tensor(cursor) for _ in range(tensor_count)]
    data_offset = -(-cursor.position // alignment) * alignment
    tensors = _place(table, alignment, data_offset, file_size, file)
    return GgufHeader(version, alignment, MappingProxyType(metadata), tensors, data_offset)


def _version(cursor: _Cursor) -> int:
    start = cursor.take(4)
    if bytes(cursor.buffer[start : start + 4]) != _MAGIC:
        raise invalid(cursor.file, "is not a GGUF file (wrong magic).")
    version = cursor.number("<I")
    if version and not version & 0xFFFF:
        raise invalid(cursor.file, "is big-endian GGUF, which is not supported.")
    if version not in (2, 3):
        raise invalid(cursor.file, f"has GGUF version {version}; versions 2 and 3 are supported.")
    return version


def _value(cursor: _Cursor, key: str) -> MetadataValue:
    kind = cursor.number("<I")
    if kind == _STRING:
        return cursor.text(MAX_STRING, f"the value of {shown(key)}")
    if kind == _ARRAY:
        return _array(cursor, key)
    code = _SCALARS.get(kind)
    if code is None:
        raise invalid(cursor.file, f"{shown(key)} has the unknown value type {kind}.")
    value = cursor.number(code)
    return _boolean(value, cursor.file, key) if kind == _BOOL else value


def _boolean(value: int, file: str, key: str) -> bool:
    if value > 1:
        raise invalid(file, f"{shown(key)} holds a boolean that is neither 0 nor 1.")
    return bool(value)


def _array(cursor: _Cursor, key: str) -> MetadataValue:
    kind = cursor.number("<I")
    count = cursor.number("<Q")
    if kind == _ARRAY:
        raise invalid(cursor.file, f"{shown(key)} is an array of arrays, which is not supported.")
    if count > MAX_ARRAY:
        raise invalid(cursor.file, f"{shown(key)} holds {count} entries, more than {MAX_ARRAY}.")
    cursor.array_elements += count
    if cursor.array_elements > MAX_ARRAY_TOTAL:
        raise invalid(cursor.file, f"its arrays hold more than {MAX_ARRAY_TOTAL} entries together.")
    if kind == _STRING:
        return _strings(cursor, key, count)
    code = _SCALARS.get(kind)
    if code is None:
        raise invalid(cursor.file, f"{shown(key)} is an array of the unknown type {kind}.")
    dtype = np.dtype(code)
    start = cursor.take(count * dtype.itemsize)
    numbers = np.frombuffer(cursor.buffer, dtype=dtype, count=count, offset=start) if count else np.empty(0, dtype)
    if kind == _BOOL:
        if count and int(numbers.max()) > 1:
            raise invalid(cursor.file, f"{shown(key)} holds a boolean that is neither 0 nor 1.")
        flags: list[bool] = numbers.astype(np.bool_).tolist()
        return flags
    values: list[int] | list[float] = numbers.tolist()
    return values


def _strings(cursor: _Cursor, key: str, count: int) -> list[str]:
    # Each entry takes at least its length field: a count that the file cannot hold is refused before the loop.
    if cursor.position + 8 * count > cursor.file_size:
        raise invalid(cursor.file, f"{shown(key)} claims more entries than the file can hold.")
    what = f"an entry of {shown(key)}"
    values: list[str] = []
    buffer, position, end = cursor.buffer, cursor.position, len(cursor.buffer)
    length_at = struct.Struct("<Q").unpack_from
    # A vocabulary has half a million of these: the sound ones are read here, the first odd one by the careful reader.
    while len(values) < count and position + 8 <= end:
        start = position + 8
        stop = start + length_at(buffer, position)[0]
        if stop > end or stop - start > MAX_STRING:
            break
        try:
            values.append(str(buffer[start:stop], "utf-8"))
        except UnicodeDecodeError:
            break
        position = stop
    cursor.position = position
    values.extend(cursor.text(MAX_STRING, what) for _ in range(count - len(values)))
    return values


def _alignment(metadata: Metadata, file: str) -> int:
    value = metadata.get("general.alignment", 32)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1 or value & (value - 1):
        raise invalid(file, "general.alignment is not a power of two.")
    if value > MAX_ALIGNMENT:
        raise invalid(file, f"general.alignment {value} is larger than {MAX_ALIGNMENT}.")
    return value


def _tensor(cursor: _Cursor) -> GgufTensor:
    """One entry of the table, its offset still relative to the data section."""
    name = cursor.text(MAX_NAME, "a tensor name")
    label = shown(name)
    if not name:
        raise invalid(cursor.file, "holds a tensor without a name.")
    dims = cursor.number("<I")
    if not 1 <= dims <= MAX_DIMS:
        raise invalid(cursor.file, f"tensor {label} has {dims} dimensions; 1 to {MAX_DIMS} are possible.")
    sizes = [cursor.number("<Q") for _ in range(dims)]
    if 0 in sizes:
        raise invalid(cursor.file, f"tensor {label} has a dimension of zero.")
    elements = math.prod(sizes)
    if elements > MAX_ELEMENTS:
        raise invalid(cursor.file, f"tensor {label} has more elements than any file holds.")
    kind = ggml_type(cursor.number("<I"), label)
    if sizes[0] % kind.block_size:
        raise invalid(cursor.file, f"rows of tensor {label} are not whole blocks of {kind.name}.")
    offset = cursor.number("<Q")
    return GgufTensor(name, kind, tuple(reversed(sizes)), offset, kind.nbytes(elements))


def _place(
    table: list[GgufTensor], alignment: int, data_offset: int, file_size: int, file: str
) -> Mapping[str, GgufTensor]:
    """Check that the tensors lie one after another inside the file, and make their offsets absolute."""
    expected = 0
    placed: dict[str, GgufTensor] = {}
    for tensor in sorted(table, key=lambda entry: entry.offset):
        label = shown(tensor.name)
        if tensor.name in placed:
            raise invalid(file, f"tensor {label} is there twice.")
        if tensor.offset % alignment:
            raise invalid(file, f"the offset of tensor {label} is not a multiple of {alignment}.")
        if tensor.offset != expected:
            fault = "overlaps another" if tensor.offset < expected else "leaves a hole before it"
            raise invalid(file, f"tensor {label} {fault}.")
        if data_offset + tensor.offset + tensor.nbytes > file_size:
            raise invalid(file, f"tensor {label} reaches past the end of the file; it is truncated.")
        expected = -(-(tensor.offset + tensor.nbytes) // alignment) * alignment
        placed[tensor.name] = msgspec.structs.replace(tensor, offset=data_offset + tensor.offset)
    return MappingProxyType({tensor.name: placed[tensor.name] for tensor in table})
