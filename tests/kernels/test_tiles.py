"""Register tiles against numpy, in every form that a CPU may get, and the words that they are fed with."""

from typing import Any

import numba
import numpy as np
import pytest

from neuron.kernels import tiles
from neuron.kernels.quant import emit

#: What the code is told that this CPU has; more is never told than there is.
FORMS = {"generic": (), "avx512": ("avx512f",), "pairs": ("avx512f", "avx512bf16")}


def to_bf16(values: Any) -> np.ndarray:
    """Bits of float32 values rounded to bfloat16."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded: np.ndarray = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded


def from_bf16(bits: Any) -> np.ndarray:
    values: np.ndarray = (bits.astype(np.uint32) << 16).view(np.float32)
    return values


def told(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not set(FORMS[form]) <= emit.host_features():
        pytest.skip(f"this CPU lacks one of {FORMS[form]}")
    monkeypatch.setattr(tiles, "host_features", lambda: frozenset(FORMS[form]))


@pytest.mark.parametrize("shape", [(1, 16, 1), (7, 48, 5), (24, 64, 32), (13, 80, 9)])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (-1.0, 1.0), (0.5, 2.0)])
def test_float_products(shape: tuple[int, int, int], alpha: float, beta: float) -> None:
    m, n, count = shape
    random = np.random.default_rng(0)
    a, b, c = (random.standard_normal(size).astype(np.float32) for size in ((m, count), (count, n), (m, n)))
    out = np.full_like(c, np.nan) if beta == 0.0 else c.copy()

    @numba.njit
    def product(a, b, c):  # type: ignore[no-untyped-def]
        tiles.product_f32(m, n, count, a, 4 * count, 4, b, 4 * n, c, 4 * n, np.float32(alpha), np.float32(beta))

    product(a.ctypes.data, b.ctypes.data, out.ctypes.data)
    wanted = alpha * (a.astype(np.float64) @ b) + (beta * c if beta else 0.0)
    np.testing.assert_allclose(out, wanted, atol=1e-4, rtol=0)


def test_the_left_matrix_may_be_transposed() -> None:
    a, b = np.arange(12, dtype=np.float32).reshape(3, 4), np.ones((3, 16), np.float32)
    out = np.zeros((4, 16), np.float32)

    @numba.njit
    def product(a, b, c):  # type: ignore[no-untyped-def]
        tiles.product_f32(4, 16, 3, a, 4, 16, b, 64, c, 64, np.float32(1), np.float32(0))

    product(a.ctypes.data, b.ctypes.data, out.ctypes.data)
    np.testing.assert_array_equal(out, a.T @ b)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(1, 16, 1), (7, 48, 5), (24, 64, 32)])
def test_products_of_pairs(shape: tuple[int, int, int], form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told(form, monkeypatch)
    made = tiles._product(True, 6)
    m, n, pairs = shape
    random = np.random.default_rng(1)
    a, b = to_bf16(random.standard_normal((m, 2 * pairs))), to_bf16(random.standard_normal((2 * pairs, n)))
    packed = np.ascontiguousarray(b.reshape(pairs, 2, n).transpose(0, 2, 1))
    out = np.full((m, n), np.nan, np.float32)

    @numba.njit
    def product(a, b, c):  # type: ignore[no-untyped-def]
        made(m, n, pairs, a, 4 * pairs, 4, b, 4 * n, c, 4 * n, np.float32(1), np.float32(0))

    product(a.ctypes.data, packed.ctypes.data, out.ctypes.data)
    np.testing.assert_allclose(out, from_bf16(a).astype(np.float64) @ from_bf16(b), atol=1e-4, rtol=0)


def test_transposed_words() -> None:
    source = np.arange(16 * 20, dtype=np.uint32).reshape(16, 20)
    out = np.zeros((16, 18), np.uint32)

    @numba.njit
    def turn(source, out):  # type: ignore[no-untyped-def]
        tiles.transpose_words(source, 80, out, 72)

    turn(source.ctypes.data, out.ctypes.data)
    np.testing.assert_array_equal(out[:, :16], source[:, :16].T)
    assert not out[:, 16:].any()
