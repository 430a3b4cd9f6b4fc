"""WeightReader: tensors of an opened model copied, one at a time, into private memory. Used while loading only."""

import math
from typing import Protocol

import numpy as np

from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.formats.gguf import GgufSet
from neuron.kernels.formats.safetensors import FP8, FP8_BLOCK, SCALE_SUFFIX, SafetensorsSet
from neuron.kernels.quant.products import expand_matrix
from neuron.kernels.threads import Team
from neuron.kernels.weights.convert import converted, write_rows
from neuron.kernels.weights.matrix import Floats, Matrix, aligned_bytes, empty_matrix, matrix_from_bytes

_DENSE = {"F32": GgmlType.F32, "F16": GgmlType.F16, "BF16": GgmlType.BF16}


class WeightReader(Protocol):
    """Both formats look alike to the loader. KeyError for a name that is not there.

    `matrix` as `kind`, else as it is stored; WeightMismatch for weights that `kind` cannot hold.
    """

    def matrix(self, name: str, kind: GgmlType | None = None) -> Matrix: ...
    def vector(self, name: str) -> Floats: ...
    def columns(self, name: str) -> int: ...
    def release(self, name: str) -> None: ...
    def has(self, name: str) -> bool: ...


class GgufReader:
    def __init__(self, opened: GgufSet, team: Team) -> None:
        self._opened, self._team = opened, team

    def has(self, name: str) -> bool:
        return name in self._opened.tensors

    def columns(self, name: str) -> int:
        """Weights in one row of matrix `name`."""
        return math.prod(self._opened.tensors[name].shape[1:])

    def release(self, name: str) -> None:
        """Tensor `name` is read: its mapped pages need not stay in memory beside the copy."""
        self._opened.release(name)

    def matrix(self, name: str, kind: GgmlType | None = None) -> Matrix:
        """Tensor `name`; the first dimension is rows, the others one row."""
        tensor = self._opened.tensors[name]
        rows, cols = tensor.shape[0], math.prod(tensor.shape[1:])
        if kind not in (None, tensor.ggml_type):
            return converted(tensor.ggml_type, rows, cols, self._opened.data(name), kind, self._team, name)
        return matrix_from_bytes(tensor.ggml_type, rows, cols, self._opened.data(name))

    def vector(self, name: str) -> Floats:
        """Tensor `name` as float32 [elements]."""
        return aligned_copy(self._opened.dequantised(name))


class SafetensorsReader:
    def __init__(self, opened: SafetensorsSet, team: Team) -> None:
        self._opened, self._team = opened, team

    def has(self, name: str) -> bool:
        return name in self._opened.tensors

    def columns(self, name: str) -> int:
        """Weights in one row of matrix `name`."""
        return math.prod(self._opened.tensors[name].shape[1:])

    def release(self, name: str) -> None:
        """Tensor `name` is read: its mapped pages need not stay in memory beside the copy."""
        self._opened.release(name)

    def matrix(self, name: str, kind: GgmlType | None = None) -> Matrix:
        """Tensor `name`; FP8 blocks that stay as they are become bfloat16."""
        tensor = self._opened.tensors[name]
        rows, cols = tensor.shape[0], math.prod(tensor.shape[1:])
        if tensor.dtype == FP8:
            return self._from_fp8(name, rows, cols, GgmlType.BF16 if kind is None else kind)
        stored = _DENSE[tensor.dtype]
        if kind not in (None, stored):
            return converted(stored, rows, cols, self._opened.data(name), kind, self._team, name)
        return matrix_from_bytes(stored, rows, cols, self._opened.data(name))

    def vector(self, name: str) -> Floats:
        """Tensor `name` as float32 [elements]."""
        tensor = self._opened.tensors[name]
        flat = matrix_from_bytes(_DENSE[tensor.dtype], 1, math.prod(tensor.shape), self._opened.data(name))
        return expanded(flat, self._team).reshape(-1)

    def _from_fp8(self, name: str, rows: int, cols: int, kind: GgmlType) -> Matrix:
        """128 rows at a time: E4M3 times the scale of its 128x128 block, rounded once to `kind`."""
        raw = self._opened.data(name).reshape(rows, cols)
        scales = self.vector(name + SCALE_SUFFIX).reshape(-1, -(-cols // FP8_BLOCK))
        table = e4m3_values()
        result = empty_matrix(kind, rows, cols)
        for block, first in enumerate(range(0, rows, FP8_BLOCK)):
            values = table[raw[first : first + FP8_BLOCK]]
            values *= np.repeat(scales[block], FP8_BLOCK)[:cols]
            write_rows(values, result, first, self._team, name)
        return result


def e4m3_values() -> Floats:
    """float32 [256]: the value of each E4M3 byte (no infinities; 0x7F and 0xFF are NaN)."""
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, (code & 7).astype(np.float32)
    magnitude = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    values = np.where(code & 0x80, -magnitude, magnitude).astype(np.float32)
    values[[0x7F, 0xFF]] = np.nan
    return values


def aligned_copy(values: Floats) -> Floats:
    """float32 [elements] in aligned private memory."""
    copy = aligned_bytes(values.size * 4).view(np.float32)
    copy[:] = values.reshape(-1)
    return copy


def expanded(matrix: Matrix, team: Team) -> Floats:
    """The matrix as float32 [rows, cols]."""
    out = aligned_bytes(matrix.rows * matrix.cols * 4).view(np.float32).reshape(matrix.rows, matrix.cols)
    team.run(
        expand_matrix,
        int(matrix.kind),
        matrix.address,
        matrix.row_bytes,
        matrix.rows,
        matrix.cols,
        out.ctypes.data,
        matrix.cols * 4,
        0,
    )
    return out
