"""The forms of the block kernels for CPUs without AVX-512 VNNI, compiled here and held to the same error."""

import numba
import numpy as np
import pytest

from neuron.kernels.formats.dequant import dequantise
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.quant import emit
from neuron.kernels.quant.activations import quantise_natural
from neuron.kernels.quant.blocks import UNPACK
from neuron.kernels.quant.rows import block_dot
from tests.kernels.quant.blocks import random_matrix


@pytest.mark.parametrize("kind", list(UNPACK))
@pytest.mark.parametrize("extensions", [(), ("avx2",)], ids=["generic", "avx2"])
def test_other_cpus_compute_the_same(
    kind: GgmlType, extensions: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not set(extensions) <= emit.host_features():
        pytest.skip(f"this CPU lacks {extensions}")
    monkeypatch.setattr(emit, "host_features", lambda: frozenset(extensions))
    dot = block_dot(kind)

    @numba.njit
    def product(row, x, q, d, cols):  # type: ignore[no-untyped-def]
        quantise_natural(x, q, d, cols)
        return dot(row, q, d, cols)

    cols = 3 * kind.block_size
    matrix = random_matrix(kind, 4, cols)
    x = np.random.default_rng(1).standard_normal(cols).astype(np.float32)
    quants, scales = np.zeros(cols, dtype=np.int16), np.zeros((cols // 32, 2), dtype=np.float32)
    addresses = (x.ctypes.data, quants.ctypes.data, scales.ctypes.data)
    found = [product(matrix.address + row * matrix.row_bytes, *addresses, cols) for row in range(4)]
    expected = dequantise(matrix.data.reshape(-1), kind, (4, cols)).astype(np.float64) @ x
    assert np.linalg.norm(np.array(found) - expected) / np.linalg.norm(expected) < 2e-4
