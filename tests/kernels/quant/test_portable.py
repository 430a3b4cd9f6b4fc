"""Every form of the block kernels that a CPU may get, compiled here and held to the same error."""

import numba
import numpy as np
import pytest

from neuron.kernels.formats.dequant import dequantise
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.quant import emit
from neuron.kernels.quant.activations import quantise_bytes, quantise_natural, quants_bytes, scales_bytes
from neuron.kernels.quant.blocks import UNPACK
from neuron.kernels.quant.byte_rows import BYTE_ROWS
from neuron.kernels.quant.rows import block_dot
from tests.kernels.quant.blocks import random_matrix
from tests.kernels.quant.test_products import assert_close

#: What a CPU must have for a form to run, and what the code is told that it has.
FORMS = {
    "generic": ((), ()),
    "avx2": (("avx2",), ("avx2",)),
    "avx512_words": (("avx512vnni", "avx512bw"), ("avx512vnni", "avx512bw")),
    # This form's instruction has two encodings; AVX-512 has it too.
    "avx_vnni": (("avx512vnni", "avx512vl"), ("avx2", "avxvnni")),
    "avx512_bytes": (("avx512vnni", "avx512bw", "avx512vl"),) * 2,
}


@pytest.mark.parametrize("kind", list(UNPACK))
@pytest.mark.parametrize("form", FORMS)
def test_every_form_computes_the_same(kind: GgmlType, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needed, told = FORMS[form]
    if not set(needed) <= emit.host_features():
        pytest.skip(f"this CPU lacks one of {needed}")
    monkeypatch.setattr(emit, "host_features", lambda: frozenset(told))
    dot = block_dot(kind)
    quantise = quantise_bytes if emit.has_byte_products() else quantise_natural

    @numba.njit
    def product(row, x, q, d, cols):  # type: ignore[no-untyped-def]
        quantise(x, q, d, cols)
        return dot(row, q, d, cols)

    # Blocks of 32: one alone, two and one, eight and three.
    for blocks in (1, 3, 11):
        cols = blocks * kind.block_size
        matrix = random_matrix(kind, 5, cols)
        x = np.random.default_rng(1).standard_normal((1, cols)).astype(np.float32)
        quants = np.full(quants_bytes(cols), 0x7F, dtype=np.uint8)
        scales = np.full(scales_bytes(cols) // 4, np.nan, dtype=np.float32)
        addresses = (x.ctypes.data, quants.ctypes.data, scales.ctypes.data)
        found = [product(matrix.address + row * matrix.row_bytes, *addresses, cols) for row in range(5)]
        weights = dequantise(matrix.data.reshape(-1), kind, (5, cols)).astype(np.float64)
        assert_close(np.array([found], dtype=np.float32), weights, x, 4e-5)


def test_every_block_type_has_both_forms() -> None:
    assert set(BYTE_ROWS) == set(UNPACK) == {kind for kind in GgmlType if kind.block_size > 1}
