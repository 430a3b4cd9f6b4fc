"""Products of prefill with stored matrices of every kind, against numpy, by both implementations."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from neuron.kernels.decoder.products import (
    Activations,
    CompiledProducts,
    LibraryProducts,
    Products,
    activation_type,
    row_buffer,
    take_rows,
)
from neuron.kernels.formats.dequant import dequantise
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.threads import Team
from neuron.kernels.weights.matrix import Floats, Matrix, aligned_bytes
from tests.kernels.quant.blocks import random_matrix
from tests.kernels.test_tiles import from_bf16, to_bf16

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module", params=[1, 3])
def team(request: pytest.FixtureRequest) -> Iterator[Team]:
    made = Team(request.param)
    yield made
    made.close()


def _matrix(kind: GgmlType, rows: int, cols: int) -> tuple[Matrix, Floats]:
    """A stored matrix and its values, rounded to what the products take."""
    matrix = random_matrix(kind, rows, cols)
    return matrix, dequantise(matrix.data.reshape(-1), kind, (rows, cols))


def _products(which: str, team: Team, *, exact: bool) -> Products:
    if which == "compiled":
        return CompiledProducts(40, team)
    return LibraryProducts(1 << 17, 512, team, exact=exact)


def _activations(rows: int, cols: int, *, exact: bool) -> tuple[Activations, npt.NDArray[np.float64]]:
    """Rows as the products take them, and their values."""
    values = (np.random.default_rng(0).standard_normal((rows, cols)) * 0.3).astype(np.float32)
    x = take_rows(row_buffer(rows, cols, activation_type(exact=exact)), rows, cols)
    x[:] = values if exact else to_bf16(values)
    return x, (x if exact else from_bf16(x)).astype(np.float64)


def _vector(count: int) -> Floats:
    vector: Floats = aligned_bytes(count * 4).view(np.float32)
    vector[:] = np.random.default_rng(3).standard_normal(count)
    return vector


@pytest.mark.parametrize("which", ["compiled", "library"])
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("kind", list(GgmlType))
@pytest.mark.parametrize("rows", [70, 192])
def test_every_kind(kind: GgmlType, rows: int, exact: bool, which: str, team: Team) -> None:
    cols = 512 if kind.block_size == 256 else 288
    matrix, values = _matrix(kind, rows, cols)
    products = _products(which, team, exact=exact)
    x, x_values = _activations(37, cols, exact=exact)
    bias, out = _vector(rows), np.full((37, rows), np.nan, np.float32)
    products.store(x, matrix, bias, out)
    wanted = x_values @ values.astype(np.float64).T + bias
    size = np.abs(wanted).max()
    tolerance = 1e-5 if exact else 1e-2
    np.testing.assert_allclose(out, wanted, atol=tolerance * size, rtol=0)
    products.add(x, matrix, None, out)
    np.testing.assert_allclose(out, 2 * wanted - bias, atol=2 * tolerance * size, rtol=0)


@pytest.mark.parametrize("which", ["compiled", "library"])
@pytest.mark.parametrize("exact", [False, True])
def test_gated_products(exact: bool, which: str, team: Team) -> None:
    cols, rows = 96, 112
    gate, up = (random_matrix(GgmlType.F32, rows, cols) for _ in range(2))
    values = [m.data.reshape(-1).view(np.float32).reshape(rows, cols).astype(np.float64) for m in (gate, up)]
    products = _products(which, team, exact=exact)
    x, x_values = _activations(21, cols, exact=exact)
    bias = _vector(rows)
    out = take_rows(row_buffer(21, rows, x.dtype), 21, rows)
    products.gated(x, gate, up, (bias, None), out)
    a, b = x_values @ values[0].T + bias, x_values @ values[1].T
    wanted = a / (1 + np.exp(-a)) * b
    found = out if exact else from_bf16(out)
    np.testing.assert_allclose(found, wanted, atol=(1e-5 if exact else 2e-2) * np.abs(wanted).max(), rtol=0)


def test_a_row_does_not_depend_on_those_beside_it(team: Team) -> None:
    """What prefix reuse rests on: a chunk's rows are the same numbers, however many of them are run at once."""
    matrix = random_matrix(GgmlType.Q4_1, 80, 288)
    products = CompiledProducts(40, team)
    x, _ = _activations(40, 288, exact=False)
    whole, part = (np.empty((40, 80), np.float32) for _ in range(2))
    products.store(x, matrix, None, whole)
    products.store(x[:17], matrix, None, part[:17])
    products.store(x[17:], matrix, None, part[17:])
    np.testing.assert_array_equal(whole, part)
