"""What the edge knows of a request before its body is read; routes take it from the ASGI scope."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from neuron.api.server.connection import Connection
from neuron.runtime.errors import NeuronError

_TRUE = frozenset({"1", "true", "yes"})
Headers = dict[str, str]


@dataclass(slots=True)
class RequestContext:
    """`principal` shares the queue fairly; `connection` is None outside our own listener (in unit tests)."""

    req_id: str
    principal: str
    include_thinking: bool
    connection: Connection | None
    body: bytes = b""
    #: Tells the edge that nothing of the body is held any more.
    forget_body: Callable[[], None] = lambda: None
    #: The code of the error that the answer is, or that its stream ended with; for the metrics.
    error_code: str = ""
    #: Called by the edge once the answer is over or the client gone, whatever happened; must not block.
    on_end: list[Callable[[], None]] = field(default_factory=list)

    def note_error(self, error: NeuronError) -> None:
        self.error_code = error.code

    def left_because(self) -> str:
        """Why a client that is gone is gone."""
        return "slow_client" if self.connection is not None and self.connection.cut else "client_disconnected"


def collect_headers(raw: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Names in lower case; of a repeated header the first."""
    headers: Headers = {}
    for name, value in raw:
        headers.setdefault(name.decode("latin1").lower(), value.decode("latin1"))
    return headers


def wants_thinking(headers: Headers) -> bool:
    return headers.get("x-include-thinking", "").strip().lower() in _TRUE


def context_of(scope: Any) -> RequestContext:
    context: RequestContext = scope["state"]["context"]
    return context
