"""BodyBudget: bytes of request bodies that the daemon holds at one time, over all connections. Kept by the edge."""

from types import TracebackType
from typing import Self

from neuron.actors import limits
from neuron.actors.errors import RateLimited

#: Of each body so many bytes are free, so that large bodies never keep ordinary requests out.
FREE_BYTES = 64 * limits.KIB


class BodyBudget:
    """Belongs to the event loop. `most`: bytes of all bodies together, beyond what is free of each."""

    def __init__(self, most: int = limits.BODIES_BYTES.value) -> None:
        self.most = most
        self.held = 0

    def share(self) -> "BodyShare":
        return BodyShare(self)


class BodyShare:
    """One request's part, given back at the end of the `with` block or when its body is of no use any more."""

    __slots__ = ("_budget", "_held")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._held = 0

    def hold(self, size: int) -> None:
        """The body has `size` bytes now. Raises RateLimited when that is too much beside the others."""
        more = max(0, size - FREE_BYTES) - self._held
        if self._budget.held + more > self._budget.most:
            raise RateLimited("Too many large requests are arriving at one time; try again later.", kind="queue_full")
        self._budget.held += more
        self._held += more

    def release(self) -> None:
        self._budget.held -= self._held
        self._held = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
