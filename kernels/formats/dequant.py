"""Dequantisation of GGUF tensors to float32, bit for bit as the `gguf` package does it, in bounded memory."""

import math

import numpy as np
import numpy.typing as npt

from neuron.kernels.formats.ggml_types import GgmlType

#: float32 elements made in one go; a temporary of some 64 MiB.
CHUNK_ELEMENTS = 1 << 20


def dequantise(
    raw: npt.NDArray[np.uint8],
    ggml_type: GgmlType,
    shape: tuple[int, ...],
    out: npt.NDArray[np.float32] | None = None,
) -> npt.NDArray[np.float32]:
    """`raw` uint8 [nbytes] of `ggml_type` as float32 of `shape` (rows first), written to `out` when given.

    Works through chunks of whole blocks, so that no temporary grows with the tensor.
    Raises ValueError when the sizes do not agree.
    """
    kind = GgmlType(ggml_type)
    elements = math.prod(shape)
    if elements % kind.block_size or raw.size != kind.nbytes(elements):
        raise ValueError(f"{raw.size} bytes do not hold {shape} of {kind.name}")
    result = np.empty(shape, dtype=np.float32) if out is None else out
    if result.shape != shape or result.dtype != np.float32 or not result.flags.c_contiguous:
        raise ValueError("out must be C-contiguous float32 of the tensor's shape")
    flat = result.reshape(-1)
    bytes_ = raw.reshape(-1)
    for start in range(0, elements, CHUNK_ELEMENTS):
        stop = min(start + CHUNK_ELEMENTS, elements)
        flat[start:stop] = _blocks(bytes_[kind.nbytes(start) : kind.nbytes(stop)], kind)
    return result


def _blocks(raw: npt.NDArray[np.uint8], kind: GgmlType) -> npt.NDArray[np.float32]:
    if kind is GgmlType.F32:
        return raw.view(np.dtype("<f4"))
    if kind is GgmlType.F16:
        return raw.view(np.dtype("<f2")).astype(np.float32)
    # Imported where blocks are, which the vectors of a model are not: it takes time at every start.
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    # Non-finite scales of a damaged file are the logits check's business, not a warning here.
    with np.errstate(all="ignore"):
        values: npt.NDArray[np.float32] = dequantize(raw, GGMLQuantizationType(kind.value))
    return values
