"""Turnstile: a model's FIFO lock of one inference, its bounded queue and its per-principal shares.

Used by the model actor only, from the event loop; no method blocks except `Ticket.wait`.
"""

import time
from collections import Counter, deque
from enum import Enum

import anyio

from neuron.actors.errors import QueueTimeout, RateLimited


class TicketState(Enum):
    RESERVED = "reserved"
    WAITING = "waiting"
    RUNNING = "running"
    LEFT = "left"


class Ticket:
    """One request's place: reserved while it is rendered, then waiting, then running, then left."""

    __slots__ = ("enqueued_at", "principal", "req_id", "started_at", "state", "wake")

    def __init__(self, req_id: str, principal: str) -> None:
        self.req_id = req_id
        self.principal = principal
        self.state = TicketState.RESERVED
        self.enqueued_at = time.monotonic()
        self.started_at: float | None = None
        self.wake = anyio.Event()

    @property
    def waited_s(self) -> float:
        return (self.started_at or time.monotonic()) - self.enqueued_at

    def poke(self) -> None:
        """Make the ticket's owner look again."""
        self.wake.set()

    async def wait(self, seconds: float) -> None:
        """Until something concerning this ticket happened, `seconds` at most."""
        with anyio.move_on_after(seconds):
            await self.wake.wait()
        self.wake = anyio.Event()


class Turnstile:
    """FIFO over tickets. The lock is handed straight to the next waiter at release, so nobody overtakes.

    Those who still wait are not woken by it: with a long queue that would be most of the work of every request.
    """

    def __init__(self, *, queue_limit: int, per_principal: int) -> None:
        self._queue_limit = queue_limit
        self._per_principal = per_principal
        self._reserved: set[Ticket] = set()
        self._waiting: deque[Ticket] = deque()
        self._principals: Counter[str] = Counter()
        self.active: Ticket | None = None
        self.rejected_queue_full = 0
        self.rejected_per_principal = 0
        self.rejected_timeout = 0

    @property
    def depth(self) -> int:
        """Requests that wait, those being rendered included."""
        return len(self._waiting) + len(self._reserved)

    @property
    def waiting(self) -> tuple[Ticket, ...]:
        return tuple(self._waiting)

    @property
    def retry_after(self) -> int:
        """Whole seconds a refused client should stay away."""
        return min(max((self.depth + 1) * 2, 1), 120)

    def reserve(self, req_id: str, principal: str, *, total_full: bool = False) -> Ticket:
        """The first check of a request, before it costs anything. Raises RateLimited."""
        seats = self._queue_limit + (1 if self.active is None else 0)
        if total_full or self.depth >= seats:
            self.rejected_queue_full += 1
            raise RateLimited(
                "The queue of this model is full; try again later.", kind="queue_full", retry_after=self.retry_after
            )
        if self._principals[principal] >= self._per_principal:
            self.rejected_per_principal += 1
            raise RateLimited(
                f"At most {self._per_principal} requests of one caller wait or run at a time.",
                kind="per_principal",
                retry_after=self.retry_after,
            )
        ticket = Ticket(req_id, principal)
        self._reserved.add(ticket)
        self._principals[principal] += 1
        return ticket

    def enqueue(self, ticket: Ticket) -> None:
        """The request is ready to run: it takes the lock if that is free, else the last place in the queue."""
        self._reserved.discard(ticket)
        ticket.state = TicketState.WAITING
        self._waiting.append(ticket)
        self._advance()

    def position(self, ticket: Ticket) -> int:
        """1 is next; 0 when it does not wait."""
        try:
            return self._waiting.index(ticket) + 1
        except ValueError:
            return 0

    def leave(self, ticket: Ticket) -> None:
        """The request is over, wherever it stands; a running one hands the lock on. Harmless when repeated."""
        if ticket.state is TicketState.LEFT:
            return
        if ticket.state is TicketState.RESERVED:
            self._reserved.discard(ticket)
        elif ticket.state is TicketState.WAITING:
            self._waiting.remove(ticket)
        else:
            self.active = None
        ticket.state = TicketState.LEFT
        self._principals[ticket.principal] -= 1
        if not self._principals[ticket.principal]:
            del self._principals[ticket.principal]
        self._advance()

    def timed_out(self, ticket: Ticket) -> QueueTimeout:
        """Counts a wait that went past the limit and returns the error to answer with."""
        self.rejected_timeout += 1
        return QueueTimeout(f"The request waited {ticket.waited_s:.0f} s for the model.", retry_after=self.retry_after)

    def _advance(self) -> None:
        if self.active is None and self._waiting:
            ticket = self._waiting.popleft()
            ticket.state = TicketState.RUNNING
            ticket.started_at = time.monotonic()
            self.active = ticket
            ticket.poke()
