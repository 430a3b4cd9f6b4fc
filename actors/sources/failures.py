"""FormatError -> the PreflightError of the same public code. The seam between weight readers and the error tree."""

from collections.abc import Iterator
from contextlib import contextmanager

from neuron.actors.errors import (
    CorruptWeights,
    InvalidConfig,
    InvalidGguf,
    MissingShard,
    PreflightError,
    SourceUnreadable,
    UnsupportedArchitecture,
)
from neuron.kernels.formats.errors import FormatError, FormatKind

_CLASSES: dict[FormatKind, type[PreflightError]] = {
    FormatKind.CORRUPT_WEIGHTS: CorruptWeights,
    FormatKind.INVALID_GGUF: InvalidGguf,
    FormatKind.MISSING_SHARD: MissingShard,
    FormatKind.UNSUPPORTED_ARCHITECTURE: UnsupportedArchitecture,
    FormatKind.UNSUPPORTED_MODEL: PreflightError,
    FormatKind.INVALID_CONFIG: InvalidConfig,
    FormatKind.SOURCE_UNREADABLE: SourceUnreadable,
}


@contextmanager
def typed_failures(model_id: str) -> Iterator[None]:
    """Whatever a reader refuses inside leaves as a PreflightError about `model_id`."""
    try:
        yield
    except FormatError as error:
        raise _CLASSES[error.kind](error.message, model_id=model_id) from error
