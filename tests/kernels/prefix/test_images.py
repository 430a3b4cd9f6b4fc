"""Prefixes with images: whatever was kept before, logits are those of an empty cache; other pixels are not reused."""

import dataclasses
import hashlib
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from neuron.actors.device import jobs
from neuron.actors.device.jobs import Sequence
from neuron.actors.images.decoder import PromptImage
from neuron.actors.images.processor import ImageProcessor
from neuron.actors.images.prompt import expand
from neuron.actors.prefix.cache import PrefixCache
from neuron.actors.prefix.prefill import Prefill
from neuron.actors.resident import Resident
from neuron.actors.settings import PrefixCacheSettings
from neuron.actors.steps import Steps
from neuron.kernels.engine import DeviceModel
from neuron.runtime.logs import get_logger
from ops.bench.direct import DirectDevice, direct_resident
from tests.kernels.decoder.tiny import Floats, load
from tests.kernels.vision.tiny import IMAGE_TOKEN, MERGE, PATCH, SCALE, patches_of, picture, tiny_vision

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]
TURN_END, CHUNK = 3, 40
PROCESSOR = ImageProcessor(PATCH, MERGE, 2, 1, 1 << 20, SCALE.rescale, SCALE.mean, SCALE.std)
_log = get_logger(__name__)


@pytest.fixture(scope="module", name="model")
def _model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceModel]:
    folder = tmp_path_factory.mktemp("model")
    tiny_vision(folder)
    model = load(folder, threads=1)
    yield model
    model.close()


def image(height: int, width: int, seed: int) -> PromptImage:
    """Cells of `height` x `width`."""
    patches = patches_of(picture(height * MERGE, width * MERGE, seed))
    digest = hashlib.blake2b(patches.tobytes(), digest_size=16).digest()
    return PromptImage(patches, (1, height * MERGE, width * MERGE), height * width, digest)


class Talk:
    """Prompts are turns; a turn is the ids of its text, or an image with text after it."""

    def __init__(self, model: DeviceModel) -> None:
        self.device = DirectDevice(model)
        settings = PrefixCacheSettings(every_tokens=60, spacing_tokens=10)
        self.resident = direct_resident(self.device, frozenset({TURN_END}), CHUNK, settings)
        self._model = model

    async def warm(self, ids: list[int], images: list[PromptImage]) -> tuple[list[Floats], int]:
        return await self._ask(self.resident, ids, images)

    async def cold(self, ids: list[int], images: list[PromptImage]) -> list[Floats]:
        cache = self.resident.prefix
        assert cache is not None
        empty = PrefixCache(cache.settings, 0, CHUNK, cache.turn_ends, cache.kv_bytes, cache.state_bytes)
        self.device.sequence = Sequence(1)
        rows, reused = await self._ask(dataclasses.replace(self.resident, prefix=empty), ids, images)
        self.device.sequence = Sequence(0)
        assert reused == 0
        return rows

    async def _ask(self, resident: Resident, ids: list[int], images: list[PromptImage]) -> tuple[list[Floats], int]:
        """The first logits and those of two steps after them."""
        prompt, seen = expand(ids, IMAGE_TOKEN, images, PROCESSOR)
        steps = Steps(resident)
        prefill = Prefill(resident, steps, _log)
        reply = await prefill.run(prompt, CHUNK, lambda: None, seen if images else None)
        rows = [steps.row(reply).copy()]
        for _ in range(2):
            steps.post(int(rows[-1].argmax()), 1 - reply.slot)
            reply = await steps.logits()
            rows.append(steps.row(reply).copy())
        return rows, prefill.reused

    @property
    def encoded(self) -> int:
        return sum(isinstance(job, jobs.EncodeImage) for job in self.device.jobs)

    def close(self) -> None:
        """Forget everything; the model stays."""
        cache = self.resident.prefix
        assert cache is not None
        assert self._model.drop_blocks(range(1, cache.next_block())) == cache.tree.nbytes
        for sequence in (0, 1):
            self._model.clear(sequence)
        self.device.slots.close()


@pytest.fixture(name="talk")
def _talk(model: DeviceModel) -> Iterator[Talk]:
    talk = Talk(model)
    yield talk
    talk.close()


def text(seed: int, length: int) -> list[int]:
    return [*np.random.default_rng(seed).integers(4, IMAGE_TOKEN, length).tolist(), TURN_END]


async def test_a_conversation_with_images_goes_on_as_from_an_empty_cache(talk: Talk) -> None:
    ids = [*text(1, 20), IMAGE_TOKEN, *text(2, 30)]
    images = [image(4, 6, 1)]
    reused = 0
    for turn in range(3, 7):
        rows, reused = await talk.warm(ids, images)
        for found, wanted in zip(rows, await talk.cold(ids, images), strict=True):
            assert np.array_equal(found, wanted)
        ids = [*ids, *text(10 * turn, 25)]
        if turn % 2:
            ids = [*ids, IMAGE_TOKEN, *text(10 * turn + 1, 15)]
            images = [*images, image(3, turn, turn)]
    assert reused > 100
    # Each image was encoded once for the warm prompts, however often it was in one.
    before = talk.encoded
    await talk.warm(ids, images)
    assert talk.encoded - before <= 1


async def test_another_picture_in_the_same_place_is_not_mistaken_for_the_first(talk: Talk) -> None:
    ids = [*text(1, 30), IMAGE_TOKEN, *text(2, 60), *text(3, 20)]
    answers: dict[int, Floats] = {}
    for seed in (1, 2, 1):
        rows, reused = await talk.warm(ids, [image(5, 5, seed)])
        assert np.array_equal(rows[0], (await talk.cold(ids, [image(5, 5, seed)]))[0])
        if seed in answers:
            assert reused > 100
            assert np.array_equal(rows[0], answers[seed])
        else:
            assert reused <= 31 + 25
        answers[seed] = rows[0]
    assert not np.array_equal(answers[1], answers[2])


async def test_a_branch_before_and_after_an_image(talk: Talk) -> None:
    head, picture_first = text(1, 25), [IMAGE_TOKEN, *text(2, 30)]
    prompts = [
        ([*head, *picture_first, *text(3, 20)], [image(4, 4, 1)]),
        ([*head, *text(4, 50)], []),
        ([*head, *picture_first, *text(5, 40)], [image(4, 4, 1)]),
        ([*head, *text(4, 50), IMAGE_TOKEN, *text(6, 10)], [image(2, 7, 9)]),
        ([*head, *picture_first, *text(3, 20), *text(7, 20)], [image(4, 4, 1)]),
    ]
    reused = []
    for ids, images in prompts:
        rows, count = await talk.warm(ids, images)
        reused.append(count)
        for found, wanted in zip(rows, await talk.cold(ids, images), strict=True):
            assert np.array_equal(found, wanted)
    assert reused[0] == 0
    assert all(count > 0 for count in reused[1:])


async def test_pixels_left_out_of_the_identity_are_noticed(talk: Talk) -> None:
    """The mutation: images told apart by nothing would bring back another picture's rows."""
    ids = [*text(1, 30), IMAGE_TOKEN, *text(2, 60), *text(3, 20)]
    blind = msgspec.structs.replace(image(5, 5, 2), digest=image(5, 5, 1).digest)
    await talk.warm(ids, [image(5, 5, 1)])
    rows, _ = await talk.warm(ids, [blind])
    assert not np.array_equal(rows[0], (await talk.cold(ids, [blind]))[0])
