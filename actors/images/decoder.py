"""ImageDecoder: the images of a request become patches, in confined processes. Owned by the registry's gates."""

import hashlib
import signal
from collections.abc import Sequence

import msgspec
import numpy as np

from neuron.actors.errors import InvalidImage
from neuron.actors.images.data_uri import parse_data_uri
from neuron.actors.images.patches import Bytes, to_patches
from neuron.actors.images.processor import ImageProcessor
from neuron.actors.images.wire import DecodeJob, DecodeReply, Refusal
from neuron.actors.limits import IMAGE_PIXELS, IMAGE_PIXELS_TOTAL, IMAGES
from neuron.actors.request import ImagePart
from neuron.runtime.confined_pool import ChildLost, ConfinedPool
from neuron.runtime.errors import InternalError
from neuron.runtime.workers import Workers

MODULE = "neuron.actors.images.decoder_child"
WALL_SECONDS = 20.0
_SENTENCES = {
    Refusal.UNREADABLE: "is not a readable PNG, JPEG, WebP, GIF or BMP image",
    Refusal.TOO_MANY_PIXELS: "has too many pixels",
    Refusal.TOO_LONG: "is more than 200 times as long as it is wide",
    Refusal.NO_MEMORY: "needs too much memory to be decoded",
}


class PromptImage(msgspec.Struct, frozen=True):
    """`patches` uint8 [h * w, 3 * patch * patch] of `grid` (1, h, w); `tokens` places in the prompt.

    `digest` names the pixels as the model sees them: equal digests are equal images.
    """

    patches: Bytes
    grid: tuple[int, int, int]
    tokens: int
    digest: bytes


class ImageDecoder:
    """Shared by all models."""

    def __init__(self, *, processes: int = 2) -> None:
        self._pool = ConfinedPool(MODULE, processes)
        self._workers = Workers(processes, "images")

    async def decode(self, parts: Sequence[ImagePart], processor: ImageProcessor) -> tuple[PromptImage, ...]:
        """The images in order. Raises InvalidImage naming the place, ShuttingDown, InternalError (a child was lost)."""
        if len(parts) > IMAGES.value:
            raise InvalidImage(f"A request may hold at most {IMAGES.value} images.", param="messages")
        images, left = [], IMAGE_PIXELS_TOTAL.value
        for part in parts:
            content = await self._workers.run(parse_data_uri, part.url, part.where)
            reply = await self._ask(content, processor, min(IMAGE_PIXELS.value, left), part.where)
            left -= reply.pixels
            images.append(await self._workers.run(_to_image, reply, processor))
        return tuple(images)

    async def start(self) -> None:
        """Start the first child ahead of the first image; nothing when one is there."""
        if not self._pool.pids():
            await self._pool.start()

    def close(self) -> None:
        self._pool.close()
        self._workers.close()

    @property
    def pool(self) -> ConfinedPool:
        return self._pool

    async def _ask(self, content: bytes, processor: ImageProcessor, limit: int, where: str) -> DecodeReply:
        job = DecodeJob(content, processor.factor, processor.min_pixels, processor.max_pixels, max(limit, 0))
        try:
            answer = await self._pool.exchange(msgspec.msgpack.encode(job), seconds=WALL_SECONDS, healthy=_healthy)
        except TimeoutError as error:
            raise InvalidImage(f"'{where}' takes too long to decode.", param=where) from error
        except ChildLost as error:
            if error.status == -signal.SIGXCPU:
                raise InvalidImage(f"'{where}' takes too long to decode.", param=where) from error
            raise InternalError("The image decoder ended unexpectedly.") from error
        reply = msgspec.msgpack.decode(answer, type=DecodeReply)
        if reply.refusal is not None:
            raise InvalidImage(f"'{where}' {_SENTENCES[reply.refusal]}.", param=where)
        return reply


def _healthy(answer: bytearray) -> bool:
    return len(answer) > 4096 or msgspec.msgpack.decode(answer, type=DecodeReply).refusal is not Refusal.NO_MEMORY


def _to_image(reply: DecodeReply, processor: ImageProcessor) -> PromptImage:
    rgb = np.frombuffer(reply.rgb, np.uint8).reshape(reply.height, reply.width, 3)
    patches = to_patches(rgb, patch=processor.patch, merge=processor.merge)
    grid = (1, reply.height // processor.patch, reply.width // processor.patch)
    digest = hashlib.blake2b(repr(grid).encode() + patches.tobytes(), digest_size=16).digest()
    return PromptImage(patches, grid, len(patches) // processor.merge**2, digest)
