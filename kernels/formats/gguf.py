"""GgufFile and GgufSet: opened GGUF weights (one file, or all parts of a split one) with mapped tensor data."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec
import numpy as np
import numpy.typing as npt

from neuron.kernels.formats.dequant import dequantise
from neuron.kernels.formats.errors import FormatError, FormatKind, shown
from neuron.kernels.formats.gguf_header import GgufTensor, Metadata, MetadataValue, invalid, parse_gguf_header
from neuron.kernels.formats.mapped_file import MappedFile, open_mapped

TensorInfo = GgufTensor


class GgufSet:
    """All tensors of a model. `metadata` is the first part's; it never changes after opening."""

    def __init__(self, parts: tuple[MappedFile, ...], metadata: Metadata, tensors: Mapping[str, GgufTensor]) -> None:
        self.metadata = metadata
        self.tensors = tensors
        self._parts = parts

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """Mapped bytes uint8 [nbytes] of tensor `name`, read-only. KeyError when there is none."""
        tensor = self.tensors[name]
        return self._parts[tensor.part].view[tensor.offset : tensor.offset + tensor.nbytes]

    def release(self, name: str) -> None:
        """The bytes of tensor `name` are copied: take them out of this process's memory."""
        tensor = self.tensors[name]
        self._parts[tensor.part].release(tensor.offset, tensor.nbytes)

    def dequantised(self, name: str) -> npt.NDArray[np.float32]:
        """Tensor `name` as float32 of its shape (a copy)."""
        tensor = self.tensors[name]
        return dequantise(self.data(name), tensor.ggml_type, tensor.shape)


class GgufFile(GgufSet):
    """One GGUF file."""

    @classmethod
    def open(cls, path: Path) -> "GgufFile":
        """Map and check `path`. Raises FormatError (invalid_gguf, missing_shard, unsupported_model, ...)."""
        mapped, header = open_mapped(path, FormatKind.INVALID_GGUF, parse_gguf_header)
        return cls((mapped,), header.metadata, header.tensors)


def open_gguf(files: Sequence[Path]) -> GgufSet:
    """Open all parts of a model in order; checks that they belong together and that none is missing.

    Raises FormatError: missing_shard (a part is absent), invalid_gguf (parts that disagree, a tensor twice).
    """
    if not files:
        raise FormatError(FormatKind.INVALID_GGUF, "No GGUF file was given.")
    parts = [GgufFile.open(path) for path in files]
    names = [path.name for path in files]
    check_split([part.metadata for part in parts], [len(part.tensors) for part in parts], names)
    if len(parts) == 1:
        return parts[0]
    tensors = merge_parts([part.tensors for part in parts], names)
    return GgufSet(tuple(part._parts[0] for part in parts), parts[0].metadata, tensors)


def merge_parts(tables: Sequence[Mapping[str, GgufTensor]], names: Sequence[str]) -> Mapping[str, GgufTensor]:
    """Tensors of all parts under one name space. Raises FormatError(invalid_gguf) for a tensor in two parts."""
    tensors: dict[str, GgufTensor] = {}
    for number, (table, file) in enumerate(zip(tables, names, strict=True)):
        for name, tensor in table.items():
            if name in tensors:
                raise invalid(file, f"tensor {shown(name)} is in another part too.")
            tensors[name] = msgspec.structs.replace(tensor, part=number)
    return MappingProxyType(tensors)


def check_split(metadata: Sequence[Metadata], tensor_counts: Sequence[int], names: Sequence[str]) -> None:
    """Check the split.* keys of all parts of one model, in the order given."""
    count = _integer(metadata[0], "split.count", 0, names[0])
    if len(names) == 1 and count <= 1:
        return
    if count != len(names):
        raise FormatError(
            FormatKind.MISSING_SHARD, f"{names[0]} belongs to a model of {count} parts; {len(names)} are there."
        )
    for number, (keys, name) in enumerate(zip(metadata, names, strict=True)):
        if _integer(keys, "split.count", 0, name) != count:
            raise invalid(name, "names another number of parts than the first part.")
        if _integer(keys, "split.no", -1, name) != number:
            raise invalid(name, f"is not part {number + 1} of {count} (split.no).")
        if keys.get("general.architecture", metadata[0].get("general.architecture")) != metadata[0].get(
            "general.architecture"
        ):
            raise invalid(name, "names another architecture than the first part.")
    total = _integer(metadata[0], "split.tensors.count", sum(tensor_counts), names[0])
    if total != sum(tensor_counts):
        raise invalid(names[0], f"its parts hold {sum(tensor_counts)} tensors together, not {total}.")


def _integer(metadata: Metadata, key: str, default: int, name: str) -> int:
    value: MetadataValue = metadata.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise invalid(name, f"{key} is not an integer.")
    return value
