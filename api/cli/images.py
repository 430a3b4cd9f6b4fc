"""Image files for `neuron chat`: read, recognised by their first bytes, and sent as data URIs."""

import base64
from pathlib import Path
from typing import Any

import click

from neuron.actors import limits

_MAGIC = ((b"\x89PNG\r\n\x1a\n", "png"), (b"\xff\xd8\xff", "jpeg"), (b"GIF8", "gif"))


def image_part(path: Path) -> dict[str, Any]:
    """A content part of a chat message. Raises ClickException with one line."""
    try:
        raw = path.expanduser().read_bytes()
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}.") from error
    if len(raw) > limits.IMAGE_BYTES.value:
        raise click.ClickException(f"{path}: larger than {limits.IMAGE_BYTES.value // limits.MIB} MiB.")
    kind = _kind(raw)
    if kind is None:
        raise click.ClickException(f"{path}: not a PNG, JPEG, WebP or GIF file.")
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{base64.b64encode(raw).decode()}"}}


def _kind(raw: bytes) -> str | None:
    """From the content; a name may say anything.

    >>> _kind(b"RIFF....WEBPVP8 ")
    'webp'
    """
    if raw[:4] == b"RIFF" and raw[8:12] == b"WEBP":
        return "webp"
    return next((kind for magic, kind in _MAGIC if raw.startswith(magic)), None)
