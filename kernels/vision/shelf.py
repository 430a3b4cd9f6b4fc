"""ImageShelf: encoded images that their sequences have not passed over yet. Owned by a model that sees."""

from collections.abc import Iterator, Sized
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from neuron.kernels.engine import Span


class Rows(Sized, Protocol):
    """[places, hidden], sliced by places."""

    def __getitem__(self, places: slice, /) -> "Rows": ...


R = TypeVar("R", bound=Rows)


@dataclass(slots=True)
class _Encoded(Generic[R]):
    sequence: int
    rows: R


class ImageShelf(Generic[R]):
    def __init__(self) -> None:
        self._images: dict[int, _Encoded[R]] = {}

    def __len__(self) -> int:
        return len(self._images)

    def put(self, sequence: int, image: int, rows: R) -> None:
        self._images[image] = _Encoded(sequence, rows)

    def spliced(self, sequence: int, spans: tuple[Span, ...], begin: int, end: int) -> Iterator[tuple[int, R]]:
        """(offset from `begin`, rows) of what stands at positions begin..end-1.

        Raises ValueError for an image that is not there or whose span has another length.
        """
        for image, offset, length in spans:
            encoded = self._images.get(image)
            if encoded is None or encoded.sequence != sequence or len(encoded.rows) != length:
                raise ValueError(f"image {image} of {length} places is not encoded for sequence {sequence}")
            first, last = max(offset, begin), min(offset + length, end)
            if first < last:
                yield first - begin, encoded.rows[first - offset : last - offset]  # type: ignore[misc]

    def passed(self, spans: tuple[Span, ...], end: int) -> None:
        """The sequence holds `end` tokens: images that lie before are given up."""
        for image, offset, length in spans:
            if offset + length <= end:
                self._images.pop(image, None)

    def forget(self, sequence: int) -> None:
        self._images = {name: image for name, image in self._images.items() if image.sequence != sequence}

    def clear(self) -> None:
        self._images.clear()
