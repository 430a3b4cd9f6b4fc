"""Products of prefill: activations times stored matrices, by code of this package or by the library."""

from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from neuron.kernels.decoder import elementwise, gemm
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.quant.products import expand_matrix
from neuron.kernels.threads import Team
from neuron.kernels.weights.matrix import Floats, Matrix

if TYPE_CHECKING:
    import torch

BFLOAT16, FLOAT32 = int(GgmlType.BF16), int(GgmlType.F32)
Activations = npt.NDArray[np.float32] | npt.NDArray[np.uint16]
"""Rows of float32, or of bfloat16 as its bits in uint16."""
Biases = tuple[Floats | None, Floats | None]


def activation_type(*, exact: bool) -> "np.dtype[np.float32] | np.dtype[np.uint16]":
    return np.dtype(np.float32) if exact else np.dtype(np.uint16)


#: Bytes between the end of a row of activations and the next. Rows a power of two apart share few places in a cache.
_APART = 64


def row_buffer(rows: int, cols: int, dtype: "np.dtype[np.float32] | np.dtype[np.uint16]") -> Activations:
    """Room for `rows` of at most `cols` numbers, to be taken by take_rows."""
    return np.empty(rows * (cols + _APART // dtype.itemsize), dtype=dtype)


def take_rows(buffer: Activations, n: int, cols: int) -> Activations:
    """The first [n, cols] of a row_buffer; a row is contiguous."""
    step = cols + _APART // buffer.itemsize
    return buffer[: n * step].reshape(n, step)[:, :cols]


class Products(Protocol):
    """x [n, cols] and what is made of it are of one type, sums float32. Rows are contiguous."""

    @property
    def nbytes(self) -> int: ...

    def follow(self, threads: int) -> None:
        """From now on the team runs on so many threads."""

    def store(self, x: Activations, matrix: Matrix, bias: Floats | None, out: Floats) -> None:
        """out [n, rows] = x . matrix^T + bias."""

    def add(self, x: Activations, matrix: Matrix, bias: Floats | None, out: Floats) -> None:
        """out [n, rows] += x . matrix^T + bias."""

    def gated(self, x: Activations, gate: Matrix, up: Matrix, biases: Biases, out: Activations) -> None:
        """out [n, rows] = silu(x . gate^T + bias) * (x . up^T + bias)."""


class CompiledProducts:
    """gemm.py, for at most `rows` rows of x."""

    def __init__(self, rows: int, team: Team) -> None:
        self._team = team
        self._private = gemm.scratch_bytes(rows)
        self._scratch = np.empty(team.threads * self._private, dtype=np.uint8)

    @property
    def nbytes(self) -> int:
        return self._scratch.nbytes

    def follow(self, threads: int) -> None:
        return

    def store(self, x: Activations, matrix: Matrix, bias: Floats | None, out: Floats) -> None:
        self._project(x, matrix, bias, gemm.STORE, out)

    def add(self, x: Activations, matrix: Matrix, bias: Floats | None, out: Floats) -> None:
        self._project(x, matrix, bias, gemm.ADD, out)

    def _project(self, x: Activations, matrix: Matrix, bias: Floats | None, mode: int, out: Floats) -> None:
        self._team.run(
            gemm.project,
            int(x.dtype == np.float32),
            len(x),
            x.ctypes.data,
            x.strides[0],
            _described(matrix),
            matrix.rows,
            matrix.cols,
            address(bias),
            self._scratch.ctypes.data,
            self._private,
            mode,
            out.ctypes.data,
            out.strides[0],
        )

    def gated(self, x: Activations, gate: Matrix, up: Matrix, biases: Biases, out: Activations) -> None:
        self._team.run(
            gemm.project_gated,
            int(x.dtype == np.float32),
            len(x),
            x.ctypes.data,
            x.strides[0],
            _described(gate),
            _described(up),
            gate.rows,
            gate.cols,
            (address(biases[0]), address(biases[1])),
            self._scratch.ctypes.data,
            self._private,
            out.ctypes.data,
            out.strides[0],
        )


class LibraryProducts:
    """torch's matrix products; a matrix is expanded unless it is stored as needed."""

    def __init__(self, largest: int, widest: int, team: Team, *, exact: bool) -> None:
        self._kind = FLOAT32 if exact else BFLOAT16
        self._team = team
        self._expanded = np.empty(largest, dtype=activation_type(exact=exact))
        self._scratch = np.empty(team.threads * 2 * widest, dtype=np.float32)
        self.follow(team.threads)

    @property
    def nbytes(self) -> int:
        return self._expanded.nbytes + self._scratch.nbytes

    def follow(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)

    def store(self, x: Activations, matrix: Matrix, bias: Floats | None, out: Floats) -> None:
        np.copyto(out, self._product(x, matrix).float().numpy())
        if bias is not None:
            out += bias

    def add(self, x: Activations, matrix: Matrix, bias: Floats | None, out: Floats) -> None:
        out += self._product(x, matrix).float().numpy()
        if bias is not None:
            out += bias

    def gated(self, x: Activations, gate: Matrix, up: Matrix, biases: Biases, out: Activations) -> None:
        gates, ups = self._product(x, gate), self._product(x, up)
        self._team.run(
            elementwise.silu,
            len(x),
            gates.data_ptr(),
            ups.data_ptr(),
            self._kind,
            address(biases[0]),
            address(biases[1]),
            gate.rows,
            self._scratch.ctypes.data,
            out.ctypes.data,
            out.strides[0],
        )

    def _product(self, x: Activations, matrix: Matrix) -> "torch.Tensor":
        import torch

        shape = (matrix.rows, matrix.cols)
        with torch.inference_mode():
            if int(matrix.kind) == _kind(x):
                weights = matrix.data.reshape(-1).view(x.dtype).reshape(shape)
            elif x.dtype == self._expanded.dtype:
                weights = self._expand(matrix, self._expanded[: matrix.rows * matrix.cols].reshape(shape))
            else:
                weights = self._expand(matrix, np.empty(shape, dtype=x.dtype))
            return torch.nn.functional.linear(tensor(x), tensor(weights))

    def _expand(self, matrix: Matrix, out: Activations) -> Activations:
        self._team.run(
            expand_matrix,
            int(matrix.kind),
            matrix.address,
            matrix.row_bytes,
            matrix.rows,
            matrix.cols,
            out.ctypes.data,
            out.strides[0],
            int(_kind(out) == BFLOAT16),
        )
        return out


def tensor(values: Activations) -> "torch.Tensor":
    """A view of `values`."""
    import torch

    if values.dtype == np.float32:
        return torch.from_numpy(values)
    return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)


def address(vector: Floats | None) -> int:
    """0 for a vector that is not there."""
    return 0 if vector is None else vector.ctypes.data


def _kind(values: Activations) -> int:
    return FLOAT32 if values.dtype == np.float32 else BFLOAT16


def _described(matrix: Matrix) -> tuple[int, int, int, int, int]:
    kind = matrix.kind
    return int(kind), matrix.address, matrix.row_bytes, kind.block_size, kind.type_size
