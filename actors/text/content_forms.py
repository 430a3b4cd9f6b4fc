"""Which forms of message content a template takes: one string, a list of parts, or both. Found by rendering probes."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from neuron.actors.errors import TemplateError

_PROBE = "Zq7probe"
Json = dict[str, Any]


class ContentForms(msgspec.Struct, frozen=True):
    """`text`: a string comes out; `parts`: the text of a list of parts comes out and nothing of its structure does."""

    text: bool
    parts: bool


async def probe_forms(render: Callable[[list[Json]], Awaitable[str]]) -> ContentForms:
    """Render a user message in both forms. A template that takes neither is treated as taking strings."""
    text = _PROBE in await _attempt(render, _PROBE)
    as_parts = await _attempt(render, [{"type": "text", "text": _PROBE}])
    parts = _PROBE in as_parts and "'type'" not in as_parts and '"type"' not in as_parts
    return ContentForms(text=text or not parts, parts=parts)


async def _attempt(render: Callable[[list[Json]], Awaitable[str]], content: str | list[Json]) -> str:
    try:
        return await render([{"role": "user", "content": content}])
    except TemplateError:
        return ""
