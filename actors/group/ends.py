"""Why a group ended: of all that its ranks show when one of them goes, the cause. Owned by the group."""

from dataclasses import dataclass, field, replace

from neuron.actors.device.deaths import Death

ECHO_SECONDS = 1.0
"""A rank that only saw a peer go is no cause: the peer's own end is waited for so long."""


@dataclass(frozen=True, slots=True)
class End:
    """`death` of `rank` on `device_id`, which took the group with it."""

    rank: int
    device_id: str
    death: Death

    @property
    def public(self) -> Death:
        """The death with its place in the reason, as records and logs show it."""
        return replace(self.death, reason=f"{self.death.reason} (rank {self.rank} on {self.device_id})")


@dataclass(slots=True)
class Ends:
    """Evidence in the order in which it came. `decided` once a cause is sure or nothing better came in time."""

    decided: End | None = None
    _heard: list[End] = field(default_factory=list)
    _decide_at: float | None = None

    def hear(self, end: End, now: float) -> End | None:
        """The cause, when this one is it; None when a better one may come (or one was decided on before)."""
        if self.decided is not None:
            return None
        self._heard.append(end)
        if not end.death.echo:
            self.decided = end
            return end
        if self._decide_at is None:
            self._decide_at = now + ECHO_SECONDS
        return None

    def overdue(self, now: float) -> End | None:
        """The first thing heard, once nothing better came in time."""
        if self.decided is not None or self._decide_at is None or now < self._decide_at:
            return None
        self.decided = self._heard[0]
        return self.decided

    @property
    def doubtful(self) -> bool:
        """Something ended; why is not known yet."""
        return self.decided is None and bool(self._heard)
