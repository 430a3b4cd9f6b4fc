"""Messages between the daemon and a template child."""

from enum import StrEnum

import msgspec


class RenderJob(msgspec.Struct, frozen=True):
    """`source` is rendered with `variables` (JSON, so that integers have no bound); `max_bytes` caps the output."""

    source: str
    variables: bytes
    max_bytes: int


class Failure(StrEnum):
    REFUSED = "refused"
    SYNTAX = "syntax"
    FORBIDDEN = "forbidden"
    UNDEFINED = "undefined"
    TOO_LARGE = "too_large"
    FAILED = "failed"


class RenderReply(msgspec.Struct, frozen=True):
    """`text` when it rendered, else `failure`; `detail` is the template's own sentence (refused) or a line number."""

    text: str | None = None
    failure: Failure | None = None
    detail: str = ""
