"""Repository: one model's files in one source, whatever the kind. Blocking; called in a thread."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Protocol, TypeVar

from neuron.actors.errors import RepoFetchFailed
from neuron.actors.sources.ids import ModelId
from neuron.kernels.formats.errors import FormatError, FormatKind, HeaderIncomplete

ReportProgress = Callable[[str, float], None]
"""(stage, fraction 0..1); called in the thread that fetches."""

MAX_FILES = 100_000
FIRST_READ = 1 << 20
#: No header within the readers' caps that a real model has is larger.
MAX_HEADER_READ = 256 << 20

Header = TypeVar("Header")


class Repository(Protocol):
    """Every method raises a PreflightError; names come from `files`."""

    model_id: ModelId

    def files(self) -> Mapping[str, int]:
        """Name -> bytes of every file, names relative with '/', confined to the model."""

    def read(self, name: str, limit: int) -> bytes:
        """A small file, whole. More than `limit` bytes are refused."""

    def head(self, name: str, count: int) -> bytes:
        """The first `count` bytes of a file (all of a shorter one)."""

    def fetch(self, names: Sequence[str], progress: ReportProgress) -> Path:
        """Make `names` local and return the directory that they lie in."""


def confined(names: Mapping[str, int], model_id: ModelId) -> dict[str, int]:
    """`names` of a listing when each is a plain relative path. Raises RepoFetchFailed for one that is not."""
    if len(names) > MAX_FILES:
        raise RepoFetchFailed(
            "The repository lists too many files.", model_id=model_id.bare, cause=f"more than {MAX_FILES} files"
        )
    for name in names:
        parts = PurePosixPath(name).parts
        plain = "\\" not in name and name.isprintable() and str(PurePosixPath(name)) == name and len(name) <= 1024
        if not parts or not plain or name.startswith("/") or any(p in ("..", ".") or ":" in p for p in parts):
            raise RepoFetchFailed(
                "The repository lists a file name that reaches outside of it.",
                model_id=model_id.bare,
                cause="unsafe file name",
            )
    return dict(names)


def read_header(
    repository: Repository, name: str, size: int, parse: Callable[[memoryview, int, str], Header]
) -> Header:
    """Parse the header of file `name` of `size` bytes, reading no more of the file than that takes."""
    base = name.rpartition("/")[2]
    wanted = min(size, FIRST_READ)
    while True:
        head = repository.head(name, wanted)
        if len(head) < wanted:
            raise FormatError(FormatKind.CORRUPT_WEIGHTS, f"{base} is shorter than listed; it is truncated.")
        try:
            return parse(memoryview(head), size, base)
        except HeaderIncomplete as incomplete:
            if incomplete.needed > MAX_HEADER_READ:
                raise FormatError(FormatKind.CORRUPT_WEIGHTS, f"{base} has a header that is too large.") from None
            wanted = min(size, max(4 * wanted, incomplete.needed))
