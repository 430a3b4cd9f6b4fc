"""Products of prefill with stored matrices of every kind, against numpy, by both implementations."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from neuron.kernels.decoder.products import CompiledProducts, LibraryProducts, Products
from neuron.kernels.formats.dequant import dequantise
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.threads import Team
from neuron.kernels.weights.matrix import Floats, Matrix, aligned_bytes
from tests.kernels.quant.blocks import random_matrix

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
        return CompiledProducts(40, team, exact=exact)
    return LibraryProducts(1 << 17, 512, team, exact=exact)


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
    x = torch.randn(37, cols, generator=torch.Generator().manual_seed(0)).to(products.dtype)
    bias, out = _vector(rows), torch.full((37, rows), torch.nan)
    products.store(x, matrix, bias, out)
    wanted = x.double().numpy() @ values.astype(np.float64).T + bias
    size = np.abs(wanted).max()
    tolerance = 1e-5 if exact else 1e-2
    np.testing.assert_allclose(out.numpy(), wanted, atol=tolerance * size, rtol=0)
    products.add(x, matrix, None, out)
    np.testing.assert_allclose(out.numpy(), 2 * wanted - bias, atol=2 * tolerance * size, rtol=0)


@pytest.mark.parametrize("which", ["compiled", "library"])
@pytest.mark.parametrize("exact", [False, True])
def test_gated_products(exact: bool, which: str, team: Team) -> None:
    cols, rows = 96, 112
    gate, up = (random_matrix(GgmlType.F32, rows, cols) for _ in range(2))
    values = [m.data.reshape(-1).view(np.float32).reshape(rows, cols).astype(np.float64) for m in (gate, up)]
    products = _products(which, team, exact=exact)
    x = torch.randn(21, cols, generator=torch.Generator().manual_seed(0)).to(products.dtype) * 0.2
    bias = _vector(rows)
    out = torch.empty(21, rows, dtype=products.dtype)
    products.gated(x, gate, up, (bias, None), out)
    a, b = x.double().numpy() @ values[0].T + bias, x.double().numpy() @ values[1].T
    wanted = a / (1 + np.exp(-a)) * b
    np.testing.assert_allclose(
        out.float().numpy(), wanted, atol=(1e-5 if exact else 2e-2) * np.abs(wanted).max(), rtol=0
    )


def test_a_row_does_not_depend_on_those_beside_it(team: Team) -> None:
    """What prefix reuse rests on: a chunk's rows are the same numbers, however many of them are run at once."""
    matrix = random_matrix(GgmlType.Q4_1, 80, 288)
    products = CompiledProducts(40, team, exact=False)
    x = torch.randn(40, 288, generator=torch.Generator().manual_seed(0)).bfloat16()
    whole, part = torch.empty(40, 80), torch.empty(40, 80)
    products.store(x, matrix, None, whole)
    products.store(x[:17], matrix, None, part[:17])
    products.store(x[17:], matrix, None, part[17:])
    assert torch.equal(whole, part)
