"""parse_data_uri: the bytes of an image given as a base64 data URI (RFC 2397). Nothing is ever fetched."""

import base64
import binascii
import re
from urllib.parse import unquote_to_bytes

from neuron.actors.errors import InvalidImage
from neuron.actors.limits import IMAGE_BYTES, MIB

_BASE64 = re.compile(rb"[A-Za-z0-9+/]*", re.ASCII)
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_ANY = ("", "application/octet-stream")
_SPACE = b" \t\r\n\f\v"
#: A header longer than this says nothing that is needed.
_MAX_HEADER = 1024


def parse_data_uri(url: str, where: str) -> bytes:
    """The payload. Type parameters, letter case, blanks, the URL-safe alphabet and missing padding are all accepted.

    The declared media type must be an image's, absent, or the one that says only "bytes" (programs write it where they
    do not know); what the bytes are is decided by their content. Raises InvalidImage naming `where`.
    """
    header, comma, payload = url.partition(",")
    scheme, colon, kind = header[:_MAX_HEADER].strip().lower().partition(":")
    if not colon or scheme != "data":
        raise InvalidImage(f"'{where}' must be a data URI; images are never fetched from an address.", param=where)
    media, *parameters = [part.strip() for part in kind.split(";")]
    if not comma or "base64" not in parameters or not (media in _ANY or media.startswith("image/")):
        raise InvalidImage(f"'{where}' must be a base64 data URI of an image.", param=where)
    # Four characters carry three bytes; blanks and percent signs are few in anything honest.
    if len(payload) > 2 * IMAGE_BYTES.value:
        raise _too_large(where)
    content = _decode(payload, where)
    if not content:
        raise InvalidImage(f"'{where}' holds no image.", param=where)
    if len(content) > IMAGE_BYTES.value:
        raise _too_large(where)
    return content


def _decode(payload: str, where: str) -> bytes:
    try:
        raw = unquote_to_bytes(payload) if "%" in payload else payload.encode("ascii")
        text = raw.translate(_URL_SAFE, _SPACE).rstrip(b"=")
        if len(text) % 4 == 1 or _BASE64.fullmatch(text) is None:
            raise ValueError("not base64")
        return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except (ValueError, binascii.Error) as error:
        raise InvalidImage(f"'{where}' holds no valid base64.", param=where) from error


def _too_large(where: str) -> InvalidImage:
    return InvalidImage(f"'{where}' is larger than {IMAGE_BYTES.value // MIB} MiB.", param=where)
