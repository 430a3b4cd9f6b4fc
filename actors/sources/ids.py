"""Model ids, `[scheme:]org/name`: the only text from which a place in a source is made. Parsed before any I/O."""

import re

import msgspec

from neuron.actors.errors import InvalidModelId, UnknownSource
from neuron.actors.settings import Settings
from neuron.actors.sources.configured import SOURCE_NAME, configured_sources

MAX_ID = 256
#: Letters, digits, `-`, `_`, `.`; never a leading dot or dash, so never "." or "..", and no %-escapes.
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}", re.ASCII)


class ModelId(msgspec.Struct, frozen=True):
    """A model in a configured source. Two ids are the same model when `qualified` is equal."""

    scheme: str
    org: str
    name: str

    @property
    def bare(self) -> str:
        return f"{self.org}/{self.name}"

    @property
    def qualified(self) -> str:
        return f"{self.scheme}:{self.org}/{self.name}"


def parse_model_id(text: str, settings: Settings) -> ModelId:
    """Split and check `text`; a bare id takes settings.default_source.

    Raises InvalidModelId (not of the form) or UnknownSource (a scheme that is not configured). Touches nothing.
    """
    if len(text) > MAX_ID:
        raise _invalid(text, f"A model id has at most {MAX_ID} characters.")
    scheme, colon, rest = text.rpartition(":")
    if colon and not scheme:
        raise _invalid(text, "The scheme before ':' is empty.")
    if colon and not SOURCE_NAME.fullmatch(scheme):
        raise _invalid(text, "The scheme is not the name of a source.")
    org, slash, name = rest.partition("/")
    if not slash:
        raise _invalid(text, "A model id is org/name, with a slash.")
    for part in (org, name):
        if not _PART.fullmatch(part) or ".." in part or part.endswith("."):
            raise _invalid(text, "Org and name hold letters, digits, '-', '_' and '.' only, and start with no dot.")
    scheme = scheme or settings.default_source
    sources = configured_sources(settings)
    if scheme not in sources:
        raise UnknownSource(
            f"The source '{scheme}' is not configured.",
            model_id=text[:MAX_ID],
            suggestion=f"Configured sources: {', '.join(sorted(sources))}.",
        )
    return ModelId(scheme, org, name)


def _invalid(text: str, message: str) -> InvalidModelId:
    return InvalidModelId(message, model_id=text[:MAX_ID], suggestion="Use [scheme:]org/name.")
