"""Products of prefill: activations times stored matrices, by code of this package or by the library."""

from typing import Protocol

import torch

from neuron.kernels.decoder import elementwise, gemm
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.quant.products import expand_matrix
from neuron.kernels.threads import Team
from neuron.kernels.weights.matrix import Floats, Matrix

BFLOAT16, FLOAT32 = int(GgmlType.BF16), int(GgmlType.F32)


class Products(Protocol):
    """x [n, cols] and what is made of it are in `dtype`, sums in float32. Rows are contiguous."""

    dtype: torch.dtype

    @property
    def nbytes(self) -> int: ...

    def store(self, x: torch.Tensor, matrix: Matrix, bias: Floats | None, out: torch.Tensor) -> None:
        """out float32 [n, rows] = x . matrix^T + bias."""

    def add(self, x: torch.Tensor, matrix: Matrix, bias: Floats | None, out: torch.Tensor) -> None:
        """out float32 [n, rows] += x . matrix^T + bias."""

    def gated(
        self, x: torch.Tensor, gate: Matrix, up: Matrix, biases: tuple[Floats | None, Floats | None], out: torch.Tensor
    ) -> None:
        """out [n, rows] = silu(x . gate^T + bias) * (x . up^T + bias)."""


class CompiledProducts:
    """gemm.py, for at most `rows` rows of x."""

    def __init__(self, rows: int, team: Team, *, exact: bool) -> None:
        self.dtype = torch.float32 if exact else torch.bfloat16
        self._team, self._exact = team, int(exact)
        self._private = gemm.scratch_bytes(rows)
        self._scratch = torch.empty(team.threads * self._private, dtype=torch.uint8)

    @property
    def nbytes(self) -> int:
        return self._scratch.numel()

    def store(self, x: torch.Tensor, matrix: Matrix, bias: Floats | None, out: torch.Tensor) -> None:
        self._project(x, matrix, bias, gemm.STORE, out)

    def add(self, x: torch.Tensor, matrix: Matrix, bias: Floats | None, out: torch.Tensor) -> None:
        self._project(x, matrix, bias, gemm.ADD, out)

    def _project(self, x: torch.Tensor, matrix: Matrix, bias: Floats | None, mode: int, out: torch.Tensor) -> None:
        exact = int(x.dtype is torch.float32)
        self._team.run(
            gemm.project,
            exact,
            len(x),
            x.data_ptr(),
            _step(x),
            _described(matrix),
            matrix.rows,
            matrix.cols,
            address(bias),
            self._scratch.data_ptr(),
            self._private,
            mode,
            out.data_ptr(),
            _step(out),
        )

    def gated(
        self, x: torch.Tensor, gate: Matrix, up: Matrix, biases: tuple[Floats | None, Floats | None], out: torch.Tensor
    ) -> None:
        self._team.run(
            gemm.project_gated,
            self._exact,
            len(x),
            x.data_ptr(),
            _step(x),
            _described(gate),
            _described(up),
            gate.rows,
            gate.cols,
            (address(biases[0]), address(biases[1])),
            self._scratch.data_ptr(),
            self._private,
            out.data_ptr(),
            _step(out),
        )


class LibraryProducts:
    """torch's matrix products; a matrix is expanded unless it is stored as needed."""

    def __init__(self, largest: int, widest: int, team: Team, *, exact: bool) -> None:
        self.dtype = torch.float32 if exact else torch.bfloat16
        self._kind = FLOAT32 if exact else BFLOAT16
        self._team = team
        self._expanded = torch.empty(largest, dtype=self.dtype)
        self._scratch = torch.empty(team.threads * 2 * widest, dtype=torch.float32)

    @property
    def nbytes(self) -> int:
        return sum(held.numel() * held.element_size() for held in (self._expanded, self._scratch))

    def store(self, x: torch.Tensor, matrix: Matrix, bias: Floats | None, out: torch.Tensor) -> None:
        out.copy_(self._product(x, matrix))
        if bias is not None:
            out.add_(torch.from_numpy(bias))

    def add(self, x: torch.Tensor, matrix: Matrix, bias: Floats | None, out: torch.Tensor) -> None:
        out.add_(self._product(x, matrix))
        if bias is not None:
            out.add_(torch.from_numpy(bias))

    def gated(
        self, x: torch.Tensor, gate: Matrix, up: Matrix, biases: tuple[Floats | None, Floats | None], out: torch.Tensor
    ) -> None:
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
            self._scratch.data_ptr(),
            out.data_ptr(),
        )

    def _product(self, x: torch.Tensor, matrix: Matrix) -> torch.Tensor:
        if x.dtype is not self.dtype:
            wide = torch.empty(matrix.rows, matrix.cols, dtype=x.dtype)
            return torch.nn.functional.linear(x, self._expand(matrix, wide))
        if int(matrix.kind) == self._kind:
            stored = torch.from_numpy(matrix.data.reshape(-1)).view(self.dtype)
            return torch.nn.functional.linear(x, stored.view(matrix.rows, matrix.cols))
        out = self._expanded[: matrix.rows * matrix.cols].view(matrix.rows, matrix.cols)
        return torch.nn.functional.linear(x, self._expand(matrix, out))

    def _expand(self, matrix: Matrix, out: torch.Tensor) -> torch.Tensor:
        self._team.run(
            expand_matrix,
            int(matrix.kind),
            matrix.address,
            matrix.row_bytes,
            matrix.rows,
            matrix.cols,
            out.data_ptr(),
            matrix.cols * out.element_size(),
            int(out.dtype is torch.bfloat16),
        )
        return out


def address(vector: Floats | None) -> int:
    """0 for a vector that is not there."""
    return 0 if vector is None else vector.ctypes.data


def _step(matrix: torch.Tensor) -> int:
    """Bytes from row to row."""
    return matrix.stride(0) * matrix.element_size()


def _described(matrix: Matrix) -> tuple[int, int, int, int, int]:
    kind = matrix.kind
    return int(kind), matrix.address, matrix.row_bytes, kind.block_size, kind.type_size
