"""Blocks made from float32: the bytes of the `gguf` package where it makes them, else llama.cpp's error."""

import numpy as np
import numpy.typing as npt
import pytest
from gguf import quants
from gguf.constants import GGMLQuantizationType

from neuron.kernels.formats.dequant import dequantise
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.quant.quantise import quantise_into
from neuron.kernels.threads import Team

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

BLOCKS = tuple(kind for kind in GgmlType if kind.block_size == 32)
SUPERS = tuple(kind for kind in GgmlType if kind.block_size == 256)

#: RMS error of llama.cpp's quantiser (ggml_quantize_chunk, no importance matrix) on `normal()` and `heavy()`.
LLAMA_CPP = {
    GgmlType.Q4_0: (1.711463e-03, 3.938300e-03),
    GgmlType.Q4_1: (1.581070e-03, 3.171020e-03),
    GgmlType.Q5_0: (8.559905e-04, 1.971112e-03),
    GgmlType.Q5_1: (7.607824e-04, 1.525657e-03),
    GgmlType.Q8_0: (1.070423e-04, 2.512751e-04),
    GgmlType.Q2_K: (5.921972e-03, 1.158240e-02),
    GgmlType.Q3_K: (3.026904e-03, 6.157456e-03),
    GgmlType.Q4_K: (1.431325e-03, 2.922746e-03),
    GgmlType.Q5_K: (7.246532e-04, 1.484180e-03),
    GgmlType.Q6_K: (3.551680e-04, 7.781507e-04),
}


def weights() -> tuple[Floats, Floats]:
    """Normal and heavy-tailed weights [24, 1024] from a generator whose numbers never change."""
    random = np.random.RandomState(7)
    normal = (random.standard_normal((24, 1024)) * 0.02).astype(np.float32)
    return normal, (random.standard_t(3, (24, 1024)) * 0.02).astype(np.float32)


def quantised(kind: GgmlType, values: Floats, threads: int = 1) -> tuple[Bytes, int]:
    """Bytes [rows, row bytes], and how many blocks were bad."""
    out = np.full((values.shape[0], kind.nbytes(values.shape[1])), 0xA5, dtype=np.uint8)
    team = Team(threads)
    bad = quantise_into(kind, values, out, team)
    team.close()
    return out, bad


def read_back(kind: GgmlType, out: Bytes, values: Floats) -> npt.NDArray[np.float64]:
    return dequantise(out.reshape(-1), kind, values.shape).astype(np.float64)


@pytest.mark.parametrize("kind", LLAMA_CPP)
def test_the_error_is_that_of_llama_cpp(kind: GgmlType) -> None:
    for values, limit in zip(weights(), LLAMA_CPP[kind], strict=True):
        out, bad = quantised(kind, values)
        assert bad == 0
        assert np.sqrt(np.mean((read_back(kind, out, values) - values) ** 2)) < 1.02 * limit


@pytest.mark.parametrize("kind", BLOCKS)
def test_simple_blocks_are_the_very_bytes_of_the_gguf_package(kind: GgmlType) -> None:
    normal, heavy = weights()
    special = np.zeros((9, 64), dtype=np.float32)
    special[1], special[2], special[3, 5] = 0.5, -0.5, 1.0
    special[4] = np.arange(-32, 32) / 8
    special[5] = np.linspace(3.0, 4.0, 64)
    special[6] = -special[5]
    special[7, ::2], special[7, 1::2] = 1.0, -1.0
    special[8] = 1e-7 * normal[0, :64]
    for values in (normal, heavy, special):
        assert (quantised(kind, values)[0] == quants.quantize(values, GGMLQuantizationType(int(kind)))).all()


@pytest.mark.parametrize("kind", LLAMA_CPP)
def test_threads_make_the_same_bytes(kind: GgmlType) -> None:
    values = weights()[1][:7, :512].copy()
    alone = quantised(kind, values)[0]
    for threads in (2, 3, 9):
        assert (quantised(kind, values, threads)[0] == alone).all()


@pytest.mark.parametrize("kind", LLAMA_CPP)
def test_nothing_stays_nothing_and_scale_does_not_matter(kind: GgmlType) -> None:
    zeros = np.zeros((1, 256), dtype=np.float32)
    out, bad = quantised(kind, zeros)
    assert bad == 0
    assert (read_back(kind, out, zeros) == 0).all()
    row = weights()[0][:1, :256].copy()
    # Where float16 scales are not denormal, a power of two changes nothing but the scale.
    small, large = (read_back(kind, quantised(kind, row * factor)[0], row) / factor for factor in (64.0, 1024.0))
    np.testing.assert_allclose(small, large, atol=0)
    tiny = row * np.float32(1e-30)
    assert np.abs(read_back(kind, quantised(kind, tiny)[0], tiny)).max() < 1e-20


@pytest.mark.parametrize("kind", LLAMA_CPP)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_weights_that_no_block_can_hold_are_counted(kind: GgmlType, value: float) -> None:
    values = weights()[0][:3, :512].copy()
    values[1, 300] = value
    assert quantised(kind, values, 2)[1] == 1


@pytest.mark.parametrize("kind", [GgmlType.F32, GgmlType.F16, GgmlType.BF16])
def test_float_types_are_rounded(kind: GgmlType) -> None:
    values = weights()[0][:3, :35].copy()
    out, bad = quantised(kind, values)
    assert bad == 0
    np.testing.assert_allclose(read_back(kind, out, values), values, rtol=2**-8)


def test_every_superblock_type_is_made() -> None:
    assert {*BLOCKS, *SUPERS} == set(LLAMA_CPP)
