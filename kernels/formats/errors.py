"""FormatError: the one exception that weight-file readers and config parsers let out, for actors and kernels."""

from enum import StrEnum


class FormatKind(StrEnum):
    """Public error codes that a file can earn; each has a class of the same code in actors.errors."""

    CORRUPT_WEIGHTS = "corrupt_weights"
    INVALID_GGUF = "invalid_gguf"
    MISSING_SHARD = "missing_shard"
    UNSUPPORTED_ARCHITECTURE = "unsupported_architecture"
    UNSUPPORTED_MODEL = "unsupported_model"
    INVALID_CONFIG = "invalid_model_config"
    SOURCE_UNREADABLE = "source_unreadable"


class FormatError(Exception):
    """A file that must not be loaded. `kind` is the public code; `message` names files without their folder."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = FormatKind(kind)
        self.message = message


class HeaderIncomplete(Exception):
    """A header parser got only the first bytes of a file and needs at least `needed` of them."""

    def __init__(self, needed: int) -> None:
        super().__init__(f"{needed} bytes of the header are needed")
        self.needed = needed


def shown(name: str, limit: int = 120) -> str:
    """`name` from an untrusted file, cut and escaped so that it can stand in a message."""
    cut = name if len(name) <= limit else name[:limit] + "..."
    return ascii(cut)
