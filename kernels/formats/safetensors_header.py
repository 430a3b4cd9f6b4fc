"""Parser of a safetensors header, stricter than the library: nothing twice, no hole, no overlap, nothing left over.

Format: https://github.com/huggingface/safetensors (8-byte length, JSON table, tensor bytes).
"""

import math
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from neuron.kernels.formats.errors import FormatError, FormatKind, HeaderIncomplete, shown
from neuron.kernels.formats.fields import JsonFault, decode_object

MAX_HEADER = 32 << 20
MAX_TENSORS = 100_000
MAX_DIMS = 8
MAX_NAME = 1024
MAX_ELEMENTS = 1 << 48

#: Bytes of one element of each data type that may appear in a file.
DTYPE_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
        "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
    }
)  # fmt: skip


class SafetensorsTensor(msgspec.Struct, frozen=True):
    """`offset` from the file's start; `file` its name; `part` its place among the files opened together."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    offset: int
    nbytes: int
    part: int = 0


def corrupt(file: str, message: str) -> FormatError:
    return FormatError(FormatKind.CORRUPT_WEIGHTS, f"{file}: {message}")


def parse_safetensors_header(buffer: memoryview, file_size: int, file: str) -> Mapping[str, SafetensorsTensor]:
    """Tensors of a file of `file_size` bytes from its first bytes, in the file's order; `file` is its name.

    Raises FormatError(corrupt_weights) or, when `buffer` is too short, HeaderIncomplete.
    """
    if file_size < 8:
        raise corrupt(file, "is too short to be safetensors.")
    if len(buffer) < 8:
        raise HeaderIncomplete(8)
    length: int = struct.unpack_from("<Q", buffer)[0]
    if length > MAX_HEADER:
        raise corrupt(file, f"its header of {length} bytes is larger than {MAX_HEADER}.")
    start = 8 + length
    if start > file_size:
        raise corrupt(file, "ends inside its header; it is truncated or not safetensors.")
    if start > len(buffer):
        raise HeaderIncomplete(start)
    table = _decode(bytes(buffer[8:start]), file)
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict) or any(not isinstance(value, str) for value in metadata.values()):
        raise corrupt(file, "its __metadata__ is not an object of texts.")
    if len(table) > MAX_TENSORS:
        raise corrupt(file, f"holds {len(table)} tensors, more than {MAX_TENSORS}.")
    tensors = {name: _tensor(name, entry, start, file) for name, entry in table.items()}
    _check_layout(tensors.values(), start, file_size, file)
    return MappingProxyType(tensors)


def _decode(text: bytes, file: str) -> dict[str, Any]:
    if text[:1] != b"{":
        raise corrupt(file, "its header is not a JSON object.")
    try:
        return decode_object(text, MAX_HEADER)
    except JsonFault as error:
        raise corrupt(file, f"its header {error}.") from error


def _tensor(name: str, entry: Any, data_start: int, file: str) -> SafetensorsTensor:
    label = shown(name)
    if not name or len(name) > MAX_NAME:
        raise corrupt(file, f"the tensor name {label} is empty or too long.")
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise corrupt(file, f"the entry of tensor {label} is not dtype, shape and data_offsets.")
    dtype = entry["dtype"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise corrupt(file, f"tensor {label} has the unknown data type {shown(str(dtype))}.")
    shape = _naturals(entry["shape"])
    if shape is None or len(shape) > MAX_DIMS:
        raise corrupt(file, f"the shape of tensor {label} is not a list of up to {MAX_DIMS} sizes.")
    offsets = _naturals(entry["data_offsets"])
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise corrupt(file, f"the offsets of tensor {label} are not a begin and an end.")
    elements = math.prod(shape)
    if elements > MAX_ELEMENTS:
        raise corrupt(file, f"tensor {label} has more elements than any file holds.")
    nbytes = elements * DTYPE_BYTES[dtype]
    if offsets[1] - offsets[0] != nbytes:
        raise corrupt(file, f"tensor {label} spans {offsets[1] - offsets[0]} bytes; its shape and type need {nbytes}.")
    return SafetensorsTensor(name, dtype, shape, file, data_start + offsets[0], nbytes)


def _naturals(value: Any) -> tuple[int, ...] | None:
    """`value` as numbers from 0 up to 2^63; None for anything else (a float, a bool, a negative number)."""
    if not isinstance(value, list):
        return None
    if any(type(item) is not int or not 0 <= item < 1 << 63 for item in value):
        return None
    return tuple(value)


def _check_layout(tensors: Any, start: int, file_size: int, file: str) -> None:
    """The tensors tile the bytes after the header exactly."""
    expected = start
    for tensor in sorted(tensors, key=lambda entry: (entry.offset, entry.nbytes)):
        if tensor.offset != expected:
            fault = "overlaps another" if tensor.offset < expected else "leaves a hole before it"
            raise corrupt(file, f"tensor {shown(tensor.name)} {fault}.")
        expected += tensor.nbytes
    if expected > file_size:
        raise corrupt(file, f"is truncated: {expected} bytes are described, {file_size} are there.")
    if expected < file_size:
        raise corrupt(file, f"has {file_size - expected} bytes after its last tensor.")
