"""Residency: which models stay in a device's memory. Unloads idle ones, and makes room for a load when that is allowed.

Owned by the load desk. Both are off unless configured ([residency]); a model with a request is never unloaded.
"""

import time
from collections.abc import Awaitable, Callable

import anyio

from neuron.actors.catalogue import Catalogue
from neuron.actors.model import ModelActor
from neuron.actors.resident import MIB
from neuron.actors.settings import ModelSettings, ResidencySettings
from neuron.runtime.logs import get_logger

log = get_logger(__name__)

#: Seconds between looks at idle models.
CHECK_S = 1.0


class Residency:
    def __init__(
        self,
        settings: ResidencySettings,
        catalogue: Catalogue,
        begin_unload: Callable[[ModelActor], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self._settings = settings
        self._catalogue = catalogue
        self._begin_unload = begin_unload
        self._clock = clock
        self._sleep = sleep
        #: One load at a time measures and makes room, so that two cannot count on the same bytes.
        self._lock = anyio.Lock()

    # -- idle models ---------------------------------------------------------------------------

    async def watch(self) -> None:
        """Unload each model that was idle for its keep_alive. Returns at once when none has one."""
        own = (model.keep_alive_seconds for model in self._catalogue.configured)
        if self._settings.keep_alive_seconds is None and all(seconds is None for seconds in own):
            return
        while True:
            for entry in self.overdue():
                log.info("idle model unloaded", model=entry.model_id, idle_s=round(self._idle_s(entry), 1))
                self._begin_unload(entry)
            await self._sleep(CHECK_S)

    def overdue(self) -> list[ModelActor]:
        return [entry for entry in self._catalogue if entry.idle and self._idle_s(entry) >= self._keep_alive(entry)]

    def _idle_s(self, entry: ModelActor) -> float:
        return self._clock() - entry.last_used

    def _keep_alive(self, entry: ModelActor) -> float:
        """Seconds; the model's own setting wins, and a negative one means for ever."""
        own: ModelSettings | None = self._catalogue.settings_of(entry.source_id, entry.model_id)
        seconds = own.keep_alive_seconds if own is not None else None
        if seconds is None:
            seconds = self._settings.keep_alive_seconds
        return float("inf") if seconds is None or seconds < 0 else seconds

    # -- room for a load -----------------------------------------------------------------------

    def room(self, entry: ModelActor, device_ids: tuple[str, ...], free: Callable[[str], int | None]) -> "Room":
        return Room(self, entry, device_ids, free)

    def free_bytes(self, entry: ModelActor, device_id: str, known: int | None) -> int | None:
        """What the device has left for `entry`: its own figure, and what the budget leaves, whichever is less."""
        if self._settings.budget_mb is None:
            return known
        others = (other for other in self._catalogue.on_device(device_id) if other is not entry)
        left = self._settings.budget_mb * MIB - sum(other.claimed_bytes for other in others)
        return max(0, left if known is None else min(known, left))

    def evictable(self, entry: ModelActor, device_id: str) -> list[ModelActor]:
        """Idle models on the device, least recently used first; none unless eviction is on."""
        if not self._settings.evict:
            return []
        idle = [other for other in self._catalogue.on_device(device_id) if other is not entry and other.idle]
        return sorted(idle, key=lambda other: other.last_used)

    async def take(self, entry: ModelActor, device_id: str, needed: int, known: int | None) -> None:
        """Unload idle models, the least recently used first, until `needed` bytes are free (or none is left)."""
        async with self._lock:
            free = self.free_bytes(entry, device_id, known)
            if free is not None:
                for other in self.evictable(entry, device_id):
                    if free >= needed:
                        break
                    # A request may have come while the one before it was unloaded.
                    if not other.idle:
                        continue
                    log.info(
                        "model evicted", model=other.model_id, device=device_id, reason=f"room for {entry.model_id}"
                    )
                    free += other.claimed_bytes
                    self._begin_unload(other)
                    await other.gone.wait()
            entry.planned_bytes = needed

    def within_reach(self, entry: ModelActor, device_id: str, known: int | None) -> int | None:
        """Free bytes once everything idle were gone: what a preflight may count on."""
        free = self.free_bytes(entry, device_id, known)
        return None if free is None else free + sum(other.claimed_bytes for other in self.evictable(entry, device_id))


class Room:
    """One load's view of its devices' memory. `free`: bytes as a device says, None where it has no such figure."""

    def __init__(
        self, residency: Residency, entry: ModelActor, device_ids: tuple[str, ...], free: Callable[[str], int | None]
    ) -> None:
        self._residency = residency
        self._entry = entry
        self._device_ids = device_ids
        self._free = free

    def within_reach(self) -> int | None:
        """Free bytes of the device that has least, once everything idle were gone; None where none has a figure."""
        known = (
            self._residency.within_reach(self._entry, device_id, self._free(device_id))
            for device_id in self._device_ids
        )
        return min((free for free in known if free is not None), default=None)

    async def take(self, needed: int) -> None:
        """`needed` bytes on each of the devices."""
        for device_id in self._device_ids:
            await self._residency.take(self._entry, device_id, needed, self._free(device_id))
