"""ImageFeed: the images of one prompt on their way to the device, each encoded just before the first chunk it is in.

Belongs to the session's Steps. A chunk that was computed for an earlier prompt needs no image at all.
"""

from neuron.actors.device.jobs import EncodeImage, ForwardLogitsWithImages, Sequence
from neuron.actors.images.prompt import ImagePlace, PromptImages
from neuron.actors.ports import BuildJob
from neuron.actors.resident import Resident
from neuron.runtime.errors import ProtocolError
from neuron.runtime.shm import ByteSegment


class ImageFeed:
    def __init__(self, images: PromptImages, resident: Resident, sequence: Sequence) -> None:
        self._images = images
        self._resident = resident
        self._sequence = sequence
        #: Number on the device of each place that was encoded.
        self._numbers: dict[int, int] = {}

    def waiting(self, begin: int, end: int) -> list[int]:
        """Places that tokens begin .. end - 1 touch and that are not encoded."""
        return [index for index in self._touched(begin, end) if index not in self._numbers]

    def encode(self, index: int) -> tuple[BuildJob, ByteSegment]:
        """The job for place `index`, and the pixels: close them once it is answered. Raises InsufficientShm."""
        image, processor = self._images.places[index].image, self._images.processor
        # A stamp was never used before, which is all that a number needs.
        number, handle, sequence = self._resident.next_stamp(), self._resident.handle, self._sequence
        pixels = ByteSegment.create(image.patches.nbytes)
        pixels.view()[:] = image.patches.reshape(-1)
        name, scale = pixels.name, (processor.rescale, processor.mean, processor.std)
        self._numbers[index] = number
        return lambda job: EncodeImage(job, handle, number, name, image.grid, sequence, *scale), pixels

    def check(self, index: int, places: int) -> None:
        """Raises ProtocolError when the device fills another number of places than the prompt has."""
        wanted = self._images.places[index].image.tokens
        if places != wanted:
            raise ProtocolError(f"The device made {places} places of an image of {wanted}.")

    def step(self, tokens: bytes, begin: int, end: int, slot: int | None, stamp: int) -> BuildJob:
        """The job that runs tokens begin .. end - 1 of the prompt."""
        handle, sequence = self._resident.handle, self._sequence
        spans = tuple(
            (self._numbers[index], place.offset, place.image.tokens)
            for index, place in self._placed(self._touched(begin, end))
        )
        positions = self._images.positions[:, begin:end].astype("<i4").tobytes()
        delta = self._images.rope_delta(end)
        return lambda job: ForwardLogitsWithImages(
            job, handle, sequence, tokens, begin, slot, stamp, spans, positions, delta
        )

    def _touched(self, begin: int, end: int) -> list[int]:
        return [
            index
            for index, place in enumerate(self._images.places)
            if place.offset < end and place.offset + place.image.tokens > begin
        ]

    def _placed(self, indices: list[int]) -> list[tuple[int, ImagePlace]]:
        return [(index, self._images.places[index]) for index in indices]
