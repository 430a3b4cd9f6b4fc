"""Dequantisation against the gguf package, block for block, and against formulas written down from the format."""

import gguf
import numpy as np
import pytest

from neuron.kernels.formats import dequant
from neuron.kernels.formats.dequant import dequantise
from neuron.kernels.formats.errors import FormatError
from neuron.kernels.formats.ggml_types import GgmlType, ggml_type


def random_blocks(kind: GgmlType, elements: int) -> np.ndarray:
    """Bytes of `elements` weights whose 16-bit scales are finite (sign and exponent of every second byte tamed)."""
    rng = np.random.default_rng(kind.value)
    raw = rng.integers(0, 256, kind.nbytes(elements), dtype=np.uint8)
    if kind in (GgmlType.F32, GgmlType.F16, GgmlType.BF16):
        values = rng.standard_normal(elements).astype(np.float32)
        if kind is GgmlType.BF16:
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.astype(np.float16 if kind is GgmlType.F16 else np.float32).view(np.uint8)
    return raw


@pytest.mark.parametrize("kind", list(GgmlType), ids=lambda kind: kind.name)
@pytest.mark.parametrize("shape", [(1, 256), (3, 512), (2, 3, 256)])
def test_equals_the_gguf_package(kind: GgmlType, shape: tuple[int, ...]) -> None:
    elements = int(np.prod(shape))
    raw = random_blocks(kind, elements)
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(raw, gguf.GGMLQuantizationType(kind.value)).reshape(shape)
    result = dequantise(raw, kind, shape)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("kind", list(GgmlType), ids=lambda kind: kind.name)
def test_chunks_do_not_show(kind: GgmlType, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = random_blocks(kind, 256 * 9)
    whole = dequantise(raw, kind, (9, 256))
    monkeypatch.setattr(dequant, "CHUNK_ELEMENTS", 512)
    out = np.zeros((9, 256), dtype=np.float32)
    assert dequantise(raw, kind, (9, 256), out) is out
    np.testing.assert_array_equal(out.view(np.uint32), whole.view(np.uint32))


def test_q4_0_and_q8_0_by_hand() -> None:
    scale = np.array([0.5], dtype=np.float16).view(np.uint8)
    nibbles = np.arange(16, dtype=np.uint8) | (np.arange(16, dtype=np.uint8)[::-1] << 4)
    q4 = dequantise(np.concatenate([scale, nibbles]), GgmlType.Q4_0, (32,))
    expected = [0.5 * (i - 8) for i in range(16)] + [0.5 * (15 - i - 8) for i in range(16)]
    np.testing.assert_array_equal(q4, np.array(expected, dtype=np.float32))
    codes = np.arange(-16, 16, dtype=np.int8)
    q8 = dequantise(np.concatenate([scale, codes.view(np.uint8)]), GgmlType.Q8_0, (32,))
    np.testing.assert_array_equal(q8, codes.astype(np.float32) * np.float32(0.5))


@pytest.mark.parametrize(
    ("size", "kind", "shape"), [(17, GgmlType.Q4_0, (32,)), (18, GgmlType.Q4_0, (16,)), (15, GgmlType.F32, (4,))]
)
def test_sizes_that_do_not_agree(size: int, kind: GgmlType, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="do not hold"):
        dequantise(np.zeros(size, dtype=np.uint8), kind, shape)


def test_an_output_that_does_not_fit() -> None:
    raw = np.zeros(128, dtype=np.uint8)
    with pytest.raises(ValueError, match="out must"):
        dequantise(raw, GgmlType.F32, (32,), np.zeros(31, dtype=np.float32))


def test_types_have_the_sizes_of_the_package() -> None:
    for kind in GgmlType:
        assert (kind.block_size, kind.type_size) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind.value)]
    with pytest.raises(FormatError):
        ggml_type(4, "t")
