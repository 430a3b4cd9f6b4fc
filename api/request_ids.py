"""The id of a request: the client's own when it is sane, else one of ours. Stands in logs, headers and error texts."""

import re
import secrets
from collections.abc import Mapping

from neuron.actors import limits

_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=@-]+")


def request_id(headers: Mapping[str, str]) -> str:
    """The client's own when it is sane, so that it can safely stand in logs and headers; else a fresh one."""
    sent = headers.get("x-request-id", "")
    sane = len(sent) <= limits.REQUEST_ID_CHARS.value and _SANE_ID.fullmatch(sent)
    return sent if sane else new_request_id()


def new_request_id() -> str:
    return f"req_{secrets.token_hex(12)}"
