"""GgmlType: the block formats that are read, and their sizes."""

from enum import IntEnum

from neuron.kernels.formats.errors import FormatError, FormatKind


class GgmlType(IntEnum):
    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    BF16 = 30

    @property
    def block_size(self) -> int:
        """Weights in one block; a row's length is a multiple of it."""
        return _SIZES[self][0]

    @property
    def type_size(self) -> int:
        """Bytes of one block."""
        return _SIZES[self][1]

    def nbytes(self, elements: int) -> int:
        """Bytes of `elements` weights (a multiple of block_size)."""
        return elements // self.block_size * self.type_size


#: (weights, bytes) of one block.
_SIZES = {
    GgmlType.F32: (1, 4),
    GgmlType.F16: (1, 2),
    GgmlType.Q4_0: (32, 18),
    GgmlType.Q4_1: (32, 20),
    GgmlType.Q5_0: (32, 22),
    GgmlType.Q5_1: (32, 24),
    GgmlType.Q8_0: (32, 34),
    GgmlType.Q2_K: (256, 84),
    GgmlType.Q3_K: (256, 110),
    GgmlType.Q4_K: (256, 144),
    GgmlType.Q5_K: (256, 176),
    GgmlType.Q6_K: (256, 210),
    GgmlType.BF16: (1, 2),
}


def ggml_type(value: int, tensor: str) -> GgmlType:
    """The type numbered `value`; FormatError invalid_gguf (no such type) or unsupported_model (known, not read)."""
    try:
        return GgmlType(value)
    except ValueError:
        pass
    # Its import takes longer than reading a header, and only this message needs it.
    from gguf.constants import GGMLQuantizationType

    try:
        name = GGMLQuantizationType(value).name
    except ValueError as error:
        raise FormatError(FormatKind.INVALID_GGUF, f"Tensor {tensor} has the unknown type {value}.") from error
    raise FormatError(FormatKind.UNSUPPORTED_MODEL, f"Tensor {tensor} is stored as {name}, which is not supported.")
