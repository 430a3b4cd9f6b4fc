"""Message content: a string, or a list of parts, from either front door."""

from typing import Any

import msgspec

from neuron.actors import limits
from neuron.actors.errors import InvalidImage, InvalidValue
from neuron.actors.request import ImagePart, Part, TextPart
from neuron.api.validate.reader import Reader, as_object

_TEXT_TYPES = frozenset({"text", "input_text", "output_text"})
#: How the header of an image's data URI may begin; the last says only that it is bytes.
_IMAGE_TYPES = ("image/", ";", "application/octet-stream;")


class Content(msgspec.Struct, frozen=True):
    """`reasoning` holds thinking blocks that stood among the parts of an assistant turn."""

    body: str | tuple[Part, ...]
    reasoning: str | None = None


def read_content(value: Any, where: str, *, images: bool, assistant: bool = False) -> Content:
    """`images`: whether this role may carry them. None gives ""."""
    if value is None:
        return Content("")
    if isinstance(value, str):
        return Content(value)
    if not isinstance(value, list):
        raise InvalidValue(f"'{where}' must be a string or a list of parts.", param=where)
    if len(value) > limits.CONTENT_PARTS.value:
        raise InvalidValue(f"'{where}' must have at most {limits.CONTENT_PARTS.value} parts.", param=where)
    parts: list[Part] = []
    thoughts: list[str] = []
    for index, item in enumerate(value):
        place = f"{where}[{index}]"
        if isinstance(item, str):
            parts.append(TextPart(item))
            continue
        reader = Reader(as_object(item, place), place)
        kind = reader.string("type")
        if assistant and kind in ("thinking", "redacted_thinking"):
            thoughts.append(reader.string("thinking") or "")
        else:
            parts.append(_part(reader, kind, images=images, assistant=assistant))
    return Content(tuple(parts), "".join(thoughts) or None)


def _part(reader: Reader, kind: str | None, *, images: bool, assistant: bool) -> Part:
    place = reader.prefix
    if kind in _TEXT_TYPES or (kind == "refusal" and assistant):
        key = "refusal" if kind == "refusal" else "text"
        text = reader.string(key)
        if text is None:
            raise InvalidValue(f"'{place}.{key}' is missing.", param=f"{place}.{key}")
        return TextPart(text)
    if kind in ("image_url", "input_image"):
        if not images:
            raise InvalidImage(f"'{place}': an image is not supported in this role.", param=place)
        return ImagePart(url=_image_url(reader, plain=kind == "input_image"), where=place)
    if kind is None:
        raise InvalidValue(f"'{place}.type' is missing.", param=f"{place}.type")
    raise InvalidValue(f"'{place}' has the unknown type '{kind[:64]}'.", param=f"{place}.type")


def _image_url(reader: Reader, *, plain: bool) -> str:
    """A data URI as sent: inside an object, or `plain` as it stands (Responses). Addresses are never fetched."""
    value = reader.get("image_url")
    param = reader.at("image_url")
    if isinstance(value, dict):
        value = value.get("url")
        param += ".url"
    elif not plain:
        raise InvalidImage(f"'{param}' must be an object with a url.", param=param)
    if not isinstance(value, str) or not value:
        raise InvalidImage(f"'{param}' must hold a data URI.", param=param)
    if value[:5].lower() != "data:":
        raise InvalidImage(f"'{param}' must be a data URI; images are never fetched from an address.", param=param)
    header = value[5:].partition(",")[0].lower()
    if ";base64" not in header or not header.startswith(_IMAGE_TYPES):
        raise InvalidImage(f"'{param}' must be a base64 data URI of an image.", param=param)
    return value
