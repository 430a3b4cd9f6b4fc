"""ImageDecoder: confined processes at work, their limits, and what a request sees of them."""

import base64
import os
import random
import resource
import signal
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import numpy as np
import pytest
from PIL import Image

from neuron.actors.errors import InvalidImage
from neuron.actors.images.decoder import ImageDecoder
from neuron.actors.request import ImagePart
from neuron.runtime.errors import NeuronError, ShuttingDown
from tests.actors.images.files import BOMB, PROCESSOR, RED_DOT, encoded, textured, uri

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def decoder() -> AsyncIterator[ImageDecoder]:
    made = ImageDecoder(processes=1)
    await made.start()
    yield made
    made.close()


def part(content: bytes, where: str = "messages[0].content[0]") -> ImagePart:
    return ImagePart(uri(content), where)


async def refusal(decoder: ImageDecoder, *contents: bytes) -> InvalidImage:
    with pytest.raises(InvalidImage) as caught:
        await decoder.decode(
            [part(content, f"messages[0].content[{i}]") for i, content in enumerate(contents)], PROCESSOR
        )
    return caught.value


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


async def test_the_red_pixel_arrives_red(decoder: ImageDecoder) -> None:
    (image,) = await decoder.decode([part(base64.b64decode(RED_DOT))], PROCESSOR)
    assert image.grid == (1, 2, 2)
    assert image.tokens == 1
    cells = image.patches.reshape(4, 3, 256)
    assert (cells[:, 0] == 255).all()
    assert not cells[:, 1:].any()


@pytest.mark.parametrize(("width", "height"), [(449, 447), (31, 639), (1, 100), (100, 1), (1000, 30)])
async def test_places_equal_rows_of_cells(decoder: ImageDecoder, width: int, height: int) -> None:
    (image,) = await decoder.decode([part(encoded(textured(width, height)))], PROCESSOR)
    frames, rows, columns = image.grid
    assert frames == 1
    assert image.patches.shape == (rows * columns, 768)
    assert image.tokens == rows // 2 * (columns // 2)


async def test_order_and_digests(decoder: ImageDecoder) -> None:
    one, two = encoded(textured(64, 64, 1)), encoded(textured(64, 64, 2))
    again = encoded(textured(64, 64, 1), "WEBP", lossless=True)
    first, second, third = await decoder.decode([part(one), part(two), part(again)], PROCESSOR)
    assert np.array_equal(first.patches, third.patches)
    assert first.digest == third.digest != second.digest


async def test_a_bomb_costs_next_to_nothing(decoder: ImageDecoder) -> None:
    await decoder.decode([part(encoded(textured(64, 64)))], PROCESSOR)
    (pid,) = decoder.pool.pids()
    before = resident_bytes(pid), resident_bytes(os.getpid())
    error = await refusal(decoder, base64.b64decode(BOMB))
    assert "too many pixels" in error.message
    assert decoder.pool.pids() == [pid]
    after = resident_bytes(pid), resident_bytes(os.getpid())
    assert after[0] - before[0] < 50 << 20
    assert after[1] - before[1] < 50 << 20


async def test_the_sum_of_pixels_is_bounded(decoder: ImageDecoder) -> None:
    large = encoded(Image.new("L", (4000, 4000), 200))
    error = await refusal(decoder, *[large] * 4, encoded(Image.new("L", (1, 1))))
    assert error.param == "messages[0].content[4]"
    assert len(await decoder.decode([part(large)] * 2, PROCESSOR)) == 2


async def test_errors_name_the_place_and_nothing_else(decoder: ImageDecoder) -> None:
    good = encoded(textured(40, 40))
    for bad in (b"\x89PNG\r\n\x1a\n" + b"\x00" * 64, good[:100], b"<svg/>"):
        error = await refusal(decoder, good, bad)
        assert error.code == "invalid_image"
        assert error.param == "messages[0].content[1]"
        assert error.message == "'messages[0].content[1]' is not a readable PNG, JPEG, WebP, GIF or BMP image."
    too_many = [part(good)] * 9
    with pytest.raises(InvalidImage, match="at most 8 images"):
        await decoder.decode(too_many, PROCESSOR)


async def test_the_loop_runs_while_an_image_is_decoded(decoder: ImageDecoder) -> None:
    ticks = 0

    async def decode() -> None:
        await decoder.decode([part(encoded(Image.effect_noise((2500, 2500), 60)))], PROCESSOR)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(decode)
        while True:
            await anyio.sleep(0.005)
            ticks += 1
    assert ticks > 5


async def test_a_child_killed_at_work_fails_one_request_and_is_replaced() -> None:
    made = ImageDecoder(processes=1)
    large = part(encoded(Image.new("RGB", (3900, 3900), (9, 99, 199)), "JPEG"))
    failures: list[NeuronError] = []

    async def decode() -> None:
        try:
            for _ in range(6):
                await made.decode([large], PROCESSOR)
        except NeuronError as error:
            failures.append(error)

    try:
        await made.start()
        (pid,) = made.pool.pids()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(decode)
            await anyio.sleep(0.3)
            os.kill(pid, signal.SIGKILL)
        assert [failure.status for failure in failures] in ([500], [])
        assert await made.decode([part(encoded(textured(32, 32)))], PROCESSOR)
        assert made.pool.pids() != [pid]
    finally:
        made.close()
    with pytest.raises(ShuttingDown):
        await made.decode([part(encoded(textured(32, 32)))], PROCESSOR)


async def test_a_child_stopped_in_the_middle_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuron.actors.images.decoder.WALL_SECONDS", 0.5)
    made = ImageDecoder(processes=1)
    try:
        await made.start()
        (pid,) = made.pool.pids()
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(InvalidImage, match="too long to decode"):
            await made.decode([part(encoded(textured(32, 32)))], PROCESSOR)
        monkeypatch.setattr("neuron.actors.images.decoder.WALL_SECONDS", 20.0)
        assert await made.decode([part(encoded(textured(32, 32)))], PROCESSOR)
    finally:
        made.close()


async def test_the_child_can_open_nothing(decoder: ImageDecoder) -> None:
    await decoder.decode([part(encoded(textured(32, 32)))], PROCESSOR)
    (pid,) = decoder.pool.pids()
    limits = await anyio.Path(f"/proc/{pid}/limits").read_text()
    for name in ("Max open files", "Max processes", "Max file size", "Max core file size"):
        line = next(line for line in limits.splitlines() if line.startswith(name))
        assert line[len(name) :].split()[:2] == ["0", "0"]
    links = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
    assert sum(link.startswith("socket:") for link in links) == 1
    assert not any("inet" in link for link in links)


async def test_garbage_never_ends_a_child(decoder: ImageDecoder) -> None:
    """Broken files of every kind, one after the other, in one and the same process."""
    rng = random.Random(5)
    (good,) = [encoded(textured(48, 48))]
    await decoder.decode([part(good)], PROCESSOR)
    (pid,) = decoder.pool.pids()
    for format in ("PNG", "JPEG", "WEBP", "GIF", "BMP"):
        whole = encoded(textured(48, 48), format)
        for _ in range(12):
            broken = bytearray(whole)
            for _ in range(rng.randint(1, 6)):
                broken[rng.randrange(len(broken))] = rng.randrange(256)
            try:
                await decoder.decode([part(bytes(broken))], PROCESSOR)
            except InvalidImage:
                continue
    assert decoder.pool.pids() == [pid]
    packed = zlib.compress(bytes(1 << 20))
    assert (await refusal(decoder, packed)).code == "invalid_image"
