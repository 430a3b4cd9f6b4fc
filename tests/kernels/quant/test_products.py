"""Row kernels of every stored type against float64 on the weights that the `gguf` package reads out of the blocks."""

import numpy as np
import numpy.typing as npt
import pytest
import torch

from neuron.kernels.formats.dequant import dequantise
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.quant.activations import quants_bytes, scales_bytes
from neuron.kernels.quant.products import expand_matrix, multiply, quantise_rows
from neuron.kernels.weights.matrix import Matrix
from tests.kernels.quant.blocks import random_matrix

Floats = npt.NDArray[np.float32]


def product(matrix: Matrix, x: Floats, thread: int = 0, threads: int = 1, out: Floats | None = None) -> Floats:
    n, cols = x.shape
    quants = np.zeros((n, quants_bytes(cols)), dtype=np.uint8)
    # What was there before must not matter.
    scales = np.full((n, scales_bytes(cols) // 4), np.nan, dtype=np.float32)
    steps = (cols * 4, quants.shape[1], 4 * scales.shape[1])
    activations = (x.ctypes.data, quants.ctypes.data, scales.ctypes.data)
    pairs = zip(activations, steps, strict=True)
    quantise_rows(int(matrix.kind), n, cols, *(number for pair in pairs for number in pair))
    result = np.full((n, matrix.rows), np.nan, dtype=np.float32) if out is None else out
    weights = (int(matrix.kind), matrix.address, matrix.row_bytes, matrix.rows, cols)
    multiply(thread, threads, *weights, n, *activations, *steps, result.ctypes.data, matrix.rows * 4)
    return result


def assert_close(found: Floats, weights: npt.NDArray[np.float64], x: Floats, error: float) -> None:
    """Within `error` of the sizes of what is added up, and within a thousandth of the results as a whole."""
    expected = x.astype(np.float64) @ weights.T
    assert np.linalg.norm(found - expected) < error * np.linalg.norm(np.abs(x) @ np.abs(weights).T)
    assert np.linalg.norm(found - expected) < 1e-3 * np.linalg.norm(expected)


@pytest.mark.parametrize("kind", list(GgmlType))
@pytest.mark.parametrize(("rows", "blocks", "n"), [(1, 1, 1), (37, 3, 1), (7, 5, 3), (5, 8, 1), (3, 6, 2), (9, 27, 1)])
def test_a_product_is_within_a_thousandth_of_float64(kind: GgmlType, rows: int, blocks: int, n: int) -> None:
    cols = blocks * kind.block_size if kind.block_size > 1 else blocks * 35
    matrix = random_matrix(kind, rows, cols)
    x = np.random.default_rng(1).standard_normal((n, cols)).astype(np.float32)
    weights = dequantise(matrix.data.reshape(-1), kind, (rows, cols)).astype(np.float64)
    assert_close(product(matrix, x), weights, x, 1e-6 if kind.block_size == 1 else 4e-5)


@pytest.mark.parametrize("kind", list(GgmlType))
def test_rows_expand_to_the_very_numbers_of_the_gguf_package(kind: GgmlType) -> None:
    cols = 3 * kind.block_size if kind.block_size > 1 else 83
    matrix = random_matrix(kind, 5, cols)
    expected = dequantise(matrix.data.reshape(-1), kind, (5, cols))
    out = np.zeros((5, cols), dtype=np.float32)
    expand_matrix(0, 1, int(kind), matrix.address, matrix.row_bytes, 5, cols, out.ctypes.data, cols * 4, 0)
    np.testing.assert_array_equal(out, expected)
    rounded = torch.zeros((5, cols), dtype=torch.bfloat16)
    expand_matrix(0, 1, int(kind), matrix.address, matrix.row_bytes, 5, cols, rounded.data_ptr(), cols * 2, 1)
    assert torch.equal(rounded, torch.from_numpy(expected).bfloat16())


def test_threads_share_the_rows_without_gap_or_overlap() -> None:
    matrix = random_matrix(GgmlType.Q4_1, 37, 64)
    x = np.random.default_rng(1).standard_normal((2, 64)).astype(np.float32)
    shared = np.full((2, 37), np.nan, dtype=np.float32)
    for thread in range(3):
        product(matrix, x, thread, 3, shared)
    np.testing.assert_array_equal(shared, product(matrix, x))


@pytest.mark.parametrize("outlier", [1.0, 1e3, 1e-6])
def test_a_large_value_costs_only_its_own_group(outlier: float) -> None:
    matrix = random_matrix(GgmlType.Q8_0, 16, 256)
    x = np.random.default_rng(1).standard_normal((1, 256)).astype(np.float32)
    x[0, 5] *= outlier
    weights = dequantise(matrix.data.reshape(-1), GgmlType.Q8_0, (16, 256)).astype(np.float64)
    expected = x.astype(np.float64) @ weights.T
    assert np.linalg.norm(product(matrix, x) - expected) / np.linalg.norm(expected) < 2e-4


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_reaches_the_result(bad: float) -> None:
    matrix = random_matrix(GgmlType.Q4_K, 3, 256)
    x = np.ones((1, 256), dtype=np.float32)
    x[0, 100] = bad
    assert not np.isfinite(product(matrix, x)).any()


def test_zeros_give_zeros() -> None:
    matrix = random_matrix(GgmlType.Q6_K, 3, 256)
    np.testing.assert_array_equal(product(matrix, np.zeros((1, 256), dtype=np.float32)), 0)
