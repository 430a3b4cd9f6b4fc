"""Messages between the daemon and the process that decodes images."""

from enum import StrEnum

import msgspec


class DecodeJob(msgspec.Struct, frozen=True):
    """Decode `content` and bring it to a multiple of `factor` pixels a side with an area within the bounds."""

    content: bytes
    factor: int
    min_pixels: int
    max_pixels: int
    #: An image of more pixels than this is refused from its header.
    limit_pixels: int


class Refusal(StrEnum):
    UNREADABLE = "unreadable"
    TOO_MANY_PIXELS = "too_many_pixels"
    TOO_LONG = "too_long"
    NO_MEMORY = "no_memory"


class DecodeReply(msgspec.Struct, frozen=True):
    """`rgb` is height x width x 3 bytes, resized; or there is a `refusal`. `pixels`: of the image as sent."""

    height: int = 0
    width: int = 0
    pixels: int = 0
    rgb: bytes = b""
    refusal: Refusal | None = None
