"""decode: the bytes of an image file to an upright RGB raster on white. Runs in the decoder process only."""

import io
import warnings

from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    ImageOps,
    JpegImagePlugin,
    MpoImagePlugin,
    PngImagePlugin,
    WebPImagePlugin,
)

from neuron.actors.images.geometry import AspectTooExtreme, smart_resize
from neuron.actors.images.wire import DecodeJob, DecodeReply, Refusal

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""What is tried, whatever the declared type."""
#: MPO is a phone's JPEG with a second picture behind it: the reader of JPEG imports it when it meets one.
_PLUGINS = (BmpImagePlugin, GifImagePlugin, JpegImagePlugin, MpoImagePlugin, PngImagePlugin, WebPImagePlugin)
_WIDE = ("I", "I;16", "I;16B", "I;16L", "I;16N")
_WHITE = (255, 255, 255, 255)


def prepare() -> None:
    """Make the library strict, and use every decoder once: what is loaded late could not be loaded when confined."""
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    for plugin in _PLUGINS:
        assert plugin is not None
    for mode, format in (
        ("RGBA", "PNG"),
        ("I;16", "PNG"),
        ("P", "GIF"),
        ("RGB", "JPEG"),
        ("RGB", "BMP"),
        ("RGBA", "WEBP"),
    ):
        for exif in (False, True):
            _try(mode, format, exif=exif)


def _try(mode: str, format: str, *, exif: bool) -> None:
    buffer, image = io.BytesIO(), Image.new(mode, (40, 40))
    extra = {}
    if exif and format in ("JPEG", "PNG", "WEBP"):
        tags = Image.Exif()
        tags[0x0112] = 6
        extra["exif"] = tags
    image.save(buffer, format, **extra)
    decode(DecodeJob(buffer.getvalue(), 32, 1024, 65536, 1 << 20))
    decode(DecodeJob(buffer.getvalue()[:40], 32, 1024, 65536, 1 << 20))


def decode(job: DecodeJob) -> DecodeReply:
    """Never raises except MemoryError. Cut, broken or foreign bytes give UNREADABLE, never half a picture."""
    Image.MAX_IMAGE_PIXELS = job.limit_pixels
    try:
        with warnings.catch_warnings():
            # A broken EXIF block is worth a warning to the library, and nothing to us.
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(job.content), formats=FORMATS) as image:
                return _decode(image, job)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return DecodeReply(refusal=Refusal.TOO_MANY_PIXELS)
    except AspectTooExtreme:
        return DecodeReply(refusal=Refusal.TOO_LONG)
    except MemoryError:
        raise
    except Exception:
        return DecodeReply(refusal=Refusal.UNREADABLE)


def _decode(image: Image.Image, job: DecodeJob) -> DecodeReply:
    # The header alone decides, before a single pixel is decoded.
    pixels = image.width * image.height
    if pixels > job.limit_pixels:
        return DecodeReply(refusal=Refusal.TOO_MANY_PIXELS)
    smart_resize(image.height, image.width, factor=job.factor, min_pixels=job.min_pixels, max_pixels=job.max_pixels)
    image.load()
    rgb = to_rgb(upright(image))
    height, width = smart_resize(
        rgb.height, rgb.width, factor=job.factor, min_pixels=job.min_pixels, max_pixels=job.max_pixels
    )
    if (rgb.height, rgb.width) != (height, width):
        rgb = rgb.resize((width, height), Image.Resampling.BICUBIC)
    return DecodeReply(height=height, width=width, pixels=pixels, rgb=rgb.tobytes())


def upright(image: Image.Image) -> Image.Image:
    """The image turned as its EXIF orientation says; a broken EXIF block says nothing."""
    try:
        return ImageOps.exif_transpose(image)
    except MemoryError:
        raise
    except Exception:
        return image


def to_rgb(image: Image.Image) -> Image.Image:
    """8-bit RGB: samples of 16 bits lose their low byte, transparency shows white."""
    if image.mode in _WIDE:
        # A plain conversion would clip every sample above 255 to white.
        image = image.convert("I").point(lambda sample: sample * (1 / 256)).convert("L")
    if image.has_transparency_data:
        ground = Image.new("RGBA", image.size, _WHITE)
        ground.alpha_composite(image.convert("RGBA"))
        image = ground
    return image if image.mode == "RGB" else image.convert("RGB")
