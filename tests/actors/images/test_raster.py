"""decode: section H's image files (IMG-02, 03, 05, 07, 08) and every way a file can be unreadable."""

import base64
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from neuron.actors.images.raster import decode, prepare
from neuron.actors.images.wire import DecodeJob, DecodeReply, Refusal
from tests.actors.images.files import BOMB, RED_DOT, WIDE_GREY, encoded, textured


@pytest.fixture(autouse=True, scope="module")
def _strict() -> None:
    prepare()


def run(content: bytes, *, factor: int = 1, most: int = 1 << 24) -> DecodeReply:
    """With a factor of 1 and wide bounds nothing is resized."""
    return decode(DecodeJob(content, factor, 1, most, 16_000_000))


def pixels(content: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    reply = run(content)
    assert reply.refusal is None
    return np.frombuffer(reply.rgb, np.uint8).reshape(reply.height, reply.width, 3)


def halves(orientation: int | None, broken: bool = False) -> bytes:
    """64 x 32, left half red, right half blue."""
    image = Image.new("RGB", (64, 32), (255, 0, 0))
    image.paste((0, 0, 255), (32, 0, 64, 32))
    if broken:
        return encoded(image, "JPEG", quality=95, exif=b"Exif\x00\x00MM\x00\x2a\xff\xff\xff\xff" + b"\x99" * 40)
    tags = Image.Exif()
    if orientation is not None:
        tags[0x0112] = orientation
    return encoded(image, "JPEG", quality=95, exif=tags)


def is_red(pixel: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bool:
    return bool(pixel[0] > 200 and pixel[2] < 60)


def test_one_red_pixel() -> None:
    assert pixels(base64.b64decode(RED_DOT)).tolist() == [[[255, 0, 0]]]


@pytest.mark.parametrize(
    ("orientation", "shape", "first_is_red"),
    [(None, (32, 64), True), (1, (32, 64), True), (3, (32, 64), False), (6, (64, 32), True), (8, (64, 32), False)],
)
def test_exif_orientation(orientation: int | None, shape: tuple[int, int], first_is_red: bool) -> None:
    upright = pixels(halves(orientation))
    assert upright.shape[:2] == shape
    assert is_red(upright[4, 4]) is first_is_red
    assert is_red(upright[-4, -4]) is not first_is_red


def test_a_broken_exif_block_says_nothing() -> None:
    upright = pixels(halves(None, broken=True))
    assert upright.shape[:2] == (32, 64)
    assert is_red(upright[4, 4])


def test_a_bomb_is_refused_from_its_header() -> None:
    assert run(base64.b64decode(BOMB)).refusal is Refusal.TOO_MANY_PIXELS


def test_a_real_large_raster_is_refused() -> None:
    assert run(encoded(Image.new("1", (12000, 12000)))).refusal is Refusal.TOO_MANY_PIXELS


def test_at_the_limit_of_pixels() -> None:
    assert run(encoded(Image.new("L", (4000, 4000))), factor=32, most=1 << 20).refusal is None
    assert run(encoded(Image.new("L", (4001, 4000)))).refusal is Refusal.TOO_MANY_PIXELS


def test_of_many_frames_the_first() -> None:
    frames = [Image.new("P", (8, 8), index % 3) for index in range(400)]
    for frame in frames:
        frame.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    gif = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert pixels(gif)[0, 0].tolist() == [255, 0, 0]


def test_the_aspect_ratio_is_decided_before_decoding() -> None:
    assert run(encoded(Image.new("RGB", (2000, 1))), factor=32).refusal is Refusal.TOO_LONG


def test_a_declared_type_does_not_matter() -> None:
    image = textured(40, 30)
    assert np.array_equal(pixels(encoded(image, "WEBP", lossless=True)), np.asarray(image))
    assert np.array_equal(pixels(encoded(image, "BMP")), np.asarray(image))


def test_sixteen_bits_lose_their_low_byte() -> None:
    grey = pixels(base64.b64decode(WIDE_GREY))
    assert grey[0, 0, 0] in (127, 128)
    assert grey[0, 1].tolist() == [0, 0, 0]
    ramp = np.arange(0, 65536, 257, dtype=np.uint16).reshape(16, 16)
    assert np.abs(pixels(encoded(Image.fromarray(ramp)))[..., 0].astype(int) - (ramp >> 8)).max() <= 1


def test_cmyk() -> None:
    cyan = pixels(encoded(Image.new("CMYK", (32, 32), (255, 0, 0, 0)), "JPEG", quality=95))[16, 16].astype(int)
    assert np.abs(cyan - [0, 255, 255]).max() < 16


def test_transparency_shows_white() -> None:
    half = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    half.putpixel((1, 0), (255, 0, 0, 128))
    for content in (encoded(half), encoded(half, "WEBP", lossless=True)):
        shown = pixels(content)
        assert shown[0, 0].tolist() == [255, 255, 255]
        assert np.abs(shown[0, 1].astype(int) - [255, 127, 127]).max() <= 1
    palette = Image.new("P", (1, 1), 1)
    palette.putpalette([9, 9, 9, 0, 0, 255])
    assert pixels(encoded(palette, transparency=1))[0, 0].tolist() == [255, 255, 255]
    assert pixels(encoded(palette))[0, 0].tolist() == [0, 0, 255]
    assert pixels(encoded(Image.new("LA", (1, 1), (10, 0))))[0, 0].tolist() == [255, 255, 255]
    key = encoded(Image.new("RGB", (1, 1), (1, 2, 3)), transparency=(1, 2, 3))
    assert pixels(key)[0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_every_mode_of_png(mode: str) -> None:
    assert pixels(encoded(textured(33, 47).convert(mode))).shape == (47, 33, 3)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def text_bomb() -> bytes:
    """A PNG whose compressed comment unfolds to 96 MiB."""
    plain = encoded(Image.new("RGB", (1, 1)))
    packer = zlib.compressobj(9)
    packed = b"".join(packer.compress(bytes(1 << 20)) for _ in range(96)) + packer.flush()
    return plain[:33] + _chunk(b"zTXt", b"Comment\x00\x00" + packed) + plain[33:]


def unreadable() -> dict[str, bytes]:
    photo = textured(200, 150)
    rng = np.random.default_rng(1)
    files = {
        "nothing": b"",
        "random bytes": rng.bytes(5000),
        "svg": b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>',
        "html": b"<html><body>no</body></html>",
        "tiff": encoded(photo, "TIFF"),
        "ico": encoded(photo.resize((32, 32)), "ICO"),
        "eps": encoded(photo, "EPS"),
        "psd header": b"8BPS\x00\x01" + bytes(200),
        "pdf": encoded(photo, "PDF"),
        "no size": b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", struct.pack(">IIBBBBB", 0, 0, 8, 2, 0, 0, 0)),
        "comment bomb": text_bomb(),
    }
    for format in ("PNG", "JPEG", "WEBP", "GIF", "BMP"):
        whole = encoded(photo, format)
        files |= {f"{format} cut": whole[: len(whole) * 6 // 10], f"{format} head": whole[:30]}
    return files


def test_no_half_picture() -> None:
    for name, content in unreadable().items():
        assert run(content).refusal is Refusal.UNREADABLE, name


def test_any_cut_and_any_flip_is_answered() -> None:
    rng = np.random.default_rng(3)
    for format in ("PNG", "JPEG", "WEBP", "GIF", "BMP"):
        whole = encoded(textured(40, 40), format)
        for _ in range(60):
            broken = bytearray(whole[: rng.integers(1, len(whole) + 1)])
            for place in rng.integers(0, len(broken), rng.integers(0, 8)):
                broken[place] = rng.integers(0, 256)
            reply = run(bytes(broken), factor=32, most=1 << 16)
            assert reply.refusal is not None or len(reply.rgb) == reply.height * reply.width * 3


def test_a_phone_picture_with_a_second_one_behind_it() -> None:
    first, second = Image.new("RGB", (16, 16), (255, 0, 0)), Image.new("RGB", (16, 16), (0, 0, 255))
    both = encoded(first, "MPO", save_all=True, append_images=[second])
    assert is_red(pixels(both)[8, 8])
