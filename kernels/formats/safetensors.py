"""SafetensorsSet: all safetensors files of a model, opened together with mapped tensor data."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec
import numpy as np
import numpy.typing as npt

from neuron.kernels.formats.errors import FormatError, FormatKind, shown
from neuron.kernels.formats.mapped_file import MappedFile, open_mapped
from neuron.kernels.formats.safetensors_header import SafetensorsTensor, corrupt, parse_safetensors_header

TensorInfo = SafetensorsTensor

FP8 = "F8_E4M3"
SCALE_SUFFIX = "_scale_inv"
#: Rows and columns of the FP8 blocks that share one scale.
FP8_BLOCK = 128


class SafetensorsSet:
    """`tensors` over all files. Data types: bf16 bytes are handed out raw (numpy has no bf16)."""

    def __init__(self, parts: tuple[MappedFile, ...], tensors: Mapping[str, SafetensorsTensor]) -> None:
        self.tensors = tensors
        self._parts = parts

    @classmethod
    def open(cls, files: Sequence[Path]) -> "SafetensorsSet":
        """Map and check `files`. Raises FormatError (corrupt_weights, missing_shard, unsupported_model, ...)."""
        opened = [open_mapped(path, FormatKind.CORRUPT_WEIGHTS, parse_safetensors_header) for path in files]
        return cls(tuple(part for part, _ in opened), merge_headers([header for _, header in opened]))

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


def merge_headers(headers: Sequence[Mapping[str, SafetensorsTensor]]) -> Mapping[str, SafetensorsTensor]:
    """Tensors of all files under one name space. Raises FormatError: nothing there, or a tensor in two files."""
    tensors: dict[str, SafetensorsTensor] = {}
    for number, header in enumerate(headers):
        for name, tensor in header.items():
            if name in tensors:
                raise corrupt(tensor.file, f"tensor {shown(name)} is in {tensors[name].file} too.")
            tensors[name] = msgspec.structs.replace(tensor, part=number)
    if not tensors:
        raise FormatError(FormatKind.CORRUPT_WEIGHTS, "The weight files hold no tensor.")
    check_fp8_scales(tensors)
    return MappingProxyType(tensors)


def check_fp8_scales(tensors: Mapping[str, SafetensorsTensor]) -> None:
    """Every FP8 weight has its scale [ceil(rows/128), ceil(columns/128)], every scale its weight.

    Raises FormatError: corrupt_weights (scale missing or misshapen), unsupported_model (E5M2, FP8 that is no matrix).
    """
    for name, tensor in tensors.items():
        if tensor.dtype == "F8_E5M2":
            raise FormatError(FormatKind.UNSUPPORTED_MODEL, f"Tensor {shown(name)} is stored as F8_E5M2.")
        if tensor.dtype != FP8:
            continue
        scale = tensors.get(name + SCALE_SUFFIX)
        if scale is None:
            raise corrupt(
                tensor.file, f"tensor {shown(name)} is FP8 and its scale {shown(name + SCALE_SUFFIX)} is missing."
            )
        if len(tensor.shape) != 2:
            raise FormatError(FormatKind.UNSUPPORTED_MODEL, f"Tensor {shown(name)} is FP8 and not a matrix.")
        expected = tuple(-(-size // FP8_BLOCK) for size in tensor.shape)
        if scale.shape != expected or scale.dtype not in ("F32", "BF16", "F16"):
            raise corrupt(scale.file, f"the scale of {shown(name)} is not {list(expected)} numbers.")
