"""The turnstile under every order of events: one runs, nobody overtakes, seats come back."""

import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule
from hypothesis.strategies import sampled_from

from neuron.actors.errors import RateLimited
from neuron.actors.turnstile import Ticket, TicketState, Turnstile


class TurnstileMachine(RuleBasedStateMachine):
    """A model of the queue as a plain list beside the real one."""

    tickets = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.turnstile = Turnstile(queue_limit=4, per_principal=2)
        self.reserved: list[Ticket] = []
        self.line: list[Ticket] = []

    @rule(target=tickets, principal=sampled_from("abcd"))
    def reserve(self, principal: str) -> object:
        running = 1 if self.line else 0
        waiting = len(self.line) - running + len(self.reserved)
        full = waiting >= 4 + (1 - running)
        share = sum(ticket.principal == principal for ticket in self.line + self.reserved) >= 2
        if full or share:
            with pytest.raises(RateLimited) as caught:
                self.turnstile.reserve("r", principal)
            assert caught.value.extra["kind"] == ("queue_full" if full else "per_principal")
            assert 1 <= (caught.value.retry_after or 0) <= 120
            return multiple()
        ticket = self.turnstile.reserve("r", principal)
        self.reserved.append(ticket)
        return ticket

    @rule(ticket=tickets)
    def enqueue(self, ticket: Ticket) -> None:
        if ticket in self.reserved:
            self.reserved.remove(ticket)
            self.line.append(ticket)
            self.turnstile.enqueue(ticket)

    @rule(ticket=tickets)
    def leave(self, ticket: Ticket) -> None:
        for held in (self.reserved, self.line):
            if ticket in held:
                held.remove(ticket)
        self.turnstile.leave(ticket)
        assert ticket.state is TicketState.LEFT

    @invariant()
    def first_in_first_out(self) -> None:
        assert self.turnstile.active is (self.line[0] if self.line else None)
        assert list(self.turnstile.waiting) == self.line[1:]
        assert self.turnstile.depth == len(self.line[1:]) + len(self.reserved)
        for place, ticket in enumerate(self.line):
            assert self.turnstile.position(ticket) == place
            assert ticket.state is (TicketState.WAITING if place else TicketState.RUNNING)

    @invariant()
    def seats_are_counted(self) -> None:
        held = self.line + self.reserved
        assert sum(self.turnstile._principals.values()) == len(held)
        assert set(self.turnstile._principals) == {ticket.principal for ticket in held}


TurnstileMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTurnstile = TurnstileMachine.TestCase
