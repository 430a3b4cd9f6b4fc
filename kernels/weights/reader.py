"""WeightReader: tensors of an opened model copied, one at a time, into private memory. Used while loading only."""

import math
from typing import Protocol

import numpy as np

from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.formats.gguf import GgufSet
from neuron.kernels.formats.safetensors import FP8, FP8_BLOCK, SCALE_SUFFIX, SafetensorsSet
from neuron.kernels.formats.sharding import WHOLE, Cut
from neuron.kernels.quant.products import expand_matrix
from neuron.kernels.threads import Team
from neuron.kernels.weights.convert import converted, write_rows
from neuron.kernels.weights.matrix import Floats, Matrix, aligned_bytes, empty_matrix
from neuron.kernels.weights.stored import StoredRows, check_borders, indices, stored_rows

_DENSE = {"F32": GgmlType.F32, "F16": GgmlType.F16, "BF16": GgmlType.BF16}


class WeightReader(Protocol):
    """Both formats look alike to the loader. KeyError for a name that is not there.

    `matrix`: the `cut` of one, as `kind`, else as it is stored; WeightMismatch for weights that `kind` cannot hold,
    IndivisibleShard for a cut within a block.
    """

    def matrix(self, name: str, kind: GgmlType | None = None, cut: Cut = WHOLE) -> Matrix: ...
    def vector(self, name: str) -> Floats: ...
    def columns(self, name: str) -> int: ...
    def kind(self, name: str) -> GgmlType:
        """The type that `matrix` gives without being asked for one."""

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

    def kind(self, name: str) -> GgmlType:
        """See WeightReader.kind."""
        return self._opened.tensors[name].ggml_type

    def release(self, name: str) -> None:
        """Tensor `name` is read: its mapped pages need not stay in memory beside the copy."""
        self._opened.release(name)

    def matrix(self, name: str, kind: GgmlType | None = None, cut: Cut = WHOLE) -> Matrix:
        """Tensor `name`; the first dimension is rows, the others one row."""
        tensor = self._opened.tensors[name]
        rows, cols = tensor.shape[0], math.prod(tensor.shape[1:])
        source = stored_rows(self._opened.data(name), tensor.ggml_type, rows, cols, name, cut, kind)
        return _as_kind(source, kind, self._team, name)

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

    def kind(self, name: str) -> GgmlType:
        """See WeightReader.kind."""
        return _DENSE.get(self._opened.tensors[name].dtype, GgmlType.BF16)

    def release(self, name: str) -> None:
        """Tensor `name` is read: its mapped pages need not stay in memory beside the copy."""
        self._opened.release(name)

    def matrix(self, name: str, kind: GgmlType | None = None, cut: Cut = WHOLE) -> Matrix:
        """Tensor `name`; FP8 blocks that stay as they are become bfloat16."""
        tensor = self._opened.tensors[name]
        rows, cols = tensor.shape[0], math.prod(tensor.shape[1:])
        if tensor.dtype == FP8:
            return self._from_fp8(name, rows, cols, GgmlType.BF16 if kind is None else kind, cut)
        source = stored_rows(self._opened.data(name), _DENSE[tensor.dtype], rows, cols, name, cut, kind)
        return _as_kind(source, kind, self._team, name)

    def vector(self, name: str) -> Floats:
        """Tensor `name` as float32 [elements]."""
        tensor = self._opened.tensors[name]
        source = stored_rows(self._opened.data(name), _DENSE[tensor.dtype], 1, math.prod(tensor.shape), name)
        return expanded(_as_kind(source, None, self._team, name), self._team).reshape(-1)

    def _from_fp8(self, name: str, rows: int, cols: int, kind: GgmlType, cut: Cut) -> Matrix:
        """128 rows at a time: E4M3 times the scale of its 128x128 block, rounded once to `kind`."""
        raw = self._opened.data(name).reshape(rows, cols)
        scales = self.vector(name + SCALE_SUFFIX).reshape(-1, -(-cols // FP8_BLOCK))
        chosen = indices(cut.rows or ((0, rows),))
        check_borders(cut, kind, cols, name)
        columns = None if cut.cols is None else indices(cut.cols)
        table = e4m3_values()
        result = empty_matrix(kind, len(chosen), cols if columns is None else len(columns))
        for first in range(0, len(chosen), FP8_BLOCK):
            part = chosen[first : first + FP8_BLOCK]
            values = table[raw[part]]
            values *= np.repeat(scales[part // FP8_BLOCK], FP8_BLOCK, axis=1)[:, :cols]
            kept = values if columns is None else np.ascontiguousarray(values[:, columns])
            write_rows(kept, result, first, self._team, name)
        return result


def _as_kind(source: StoredRows, kind: GgmlType | None, team: Team, name: str) -> Matrix:
    if kind not in (None, source.kind):
        return converted(source, kind, team, name)
    result = empty_matrix(source.kind, source.rows, source.cols)
    source.copy(0, result.data)
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
