"""WeightReader: tensors of an opened model copied, one at a time, into private memory. Used while loading only."""

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from neuron.kernels.errors import UnsupportedLoad
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.formats.gguf import GgufSet
from neuron.kernels.formats.safetensors import FP8, FP8_BLOCK, SCALE_SUFFIX, SafetensorsSet
from neuron.kernels.quant.products import expand_matrix, narrow_matrix
from neuron.kernels.threads import Team
from neuron.kernels.weights.matrix import Floats, Matrix, aligned_bytes, empty_matrix, matrix_from_bytes

_DENSE = {"F32": GgmlType.F32, "F16": GgmlType.F16, "BF16": GgmlType.BF16}
FLOAT_KINDS = (GgmlType.F32, GgmlType.F16, GgmlType.BF16)


class WeightReader(Protocol):
    """Both formats look alike to the loader. KeyError for a name that is not there."""

    def matrix(self, name: str) -> Matrix: ...
    def vector(self, name: str) -> Floats: ...
    def has(self, name: str) -> bool: ...


class GgufReader:
    def __init__(self, opened: GgufSet, team: Team) -> None:
        self._opened, self._team = opened, team

    def has(self, name: str) -> bool:
        return name in self._opened.tensors

    def matrix(self, name: str) -> Matrix:
        """Tensor `name` as stored; the first dimension is rows, the others one row."""
        tensor = self._opened.tensors[name]
        rows, cols = tensor.shape[0], math.prod(tensor.shape[1:])
        return matrix_from_bytes(tensor.ggml_type, rows, cols, self._opened.data(name))

    def vector(self, name: str) -> Floats:
        """Tensor `name` as float32 [elements]."""
        return aligned_copy(self._opened.dequantised(name))


class SafetensorsReader:
    def __init__(self, opened: SafetensorsSet, team: Team) -> None:
        self._opened, self._team = opened, team

    def has(self, name: str) -> bool:
        return name in self._opened.tensors

    def matrix(self, name: str) -> Matrix:
        """Tensor `name` as stored; FP8 blocks are expanded to bfloat16."""
        tensor = self._opened.tensors[name]
        rows, cols = tensor.shape[0], math.prod(tensor.shape[1:])
        if tensor.dtype == FP8:
            return self._from_fp8(name, rows, cols)
        return matrix_from_bytes(_DENSE[tensor.dtype], rows, cols, self._opened.data(name))

    def vector(self, name: str) -> Floats:
        """Tensor `name` as float32 [elements]."""
        tensor = self._opened.tensors[name]
        flat = matrix_from_bytes(_DENSE[tensor.dtype], 1, math.prod(tensor.shape), self._opened.data(name))
        return expanded(flat, self._team).reshape(-1)

    def _from_fp8(self, name: str, rows: int, cols: int) -> Matrix:
        """128 rows at a time: E4M3 times the scale of its 128x128 block, rounded once to bfloat16."""
        raw = self._opened.data(name).reshape(rows, cols)
        scales = self.vector(name + SCALE_SUFFIX).reshape(-1, -(-cols // FP8_BLOCK))
        table = e4m3_values()
        result = empty_matrix(GgmlType.BF16, rows, cols)
        for block, first in enumerate(range(0, rows, FP8_BLOCK)):
            values = table[raw[first : first + FP8_BLOCK]]
            values *= np.repeat(scales[block], FP8_BLOCK)[:cols]
            part = Matrix(GgmlType.BF16, values.shape[0], cols, result.data[first : first + FP8_BLOCK])
            narrow_into(values, part, self._team)
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


def narrow_into(values: Floats, out: Matrix, team: Team) -> None:
    """Round float32 [rows, cols] to the float kind of `out`."""
    rows, cols = values.shape
    team.run(narrow_matrix, int(out.kind), values.ctypes.data, rows, cols, out.address, out.row_bytes)


Convert = Callable[[Matrix], Matrix]


def converter(quant: str | None, team: Team) -> Convert | None:
    """What a load's `quant` does to each matrix; None keeps what is stored. Raises UnsupportedLoad."""
    if quant is None:
        return None
    kinds = {"f32": GgmlType.F32, "f16": GgmlType.F16, "bf16": GgmlType.BF16}
    kind = kinds.get(quant.lower())
    if kind is None:
        raise UnsupportedLoad("unsupported_quant", f"In-situ quantisation to {quant} is not available.")

    def convert(matrix: Matrix) -> Matrix:
        if matrix.kind is kind:
            return matrix
        values = expanded(matrix, team)
        result = empty_matrix(kind, matrix.rows, matrix.cols)
        narrow_into(values, result, team)
        return result

    return convert
