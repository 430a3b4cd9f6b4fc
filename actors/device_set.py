"""DeviceSet: the device actors of this host by id, made when first asked for. Owned by the registry."""

from collections.abc import Callable

from neuron.actors.daemon import DeviceInfo, PoisonRecord
from neuron.actors.device.devices import known_devices
from neuron.actors.ports import DevicePort

OnDeviceDeath = Callable[[str, PoisonRecord], None]


class DeviceSet:
    """`make` builds the actor of one device; `on_death` hears of every unexpected end with the device's id."""

    def __init__(self, make: Callable[[str], DevicePort], on_death: OnDeviceDeath) -> None:
        self._make = make
        self._on_death = on_death
        self._actors: dict[str, DevicePort] = {}
        known = known_devices()
        #: Always listed: every GPU, or the one CPU device of a host without.
        self.listed = known if known[0].startswith("cuda") else known[:1]
        for device_id in self.listed:
            self.get(device_id)

    def get(self, device_id: str) -> DevicePort:
        actor = self._actors.get(device_id)
        if actor is None:
            actor = self._make(device_id)
            actor.on_death(lambda record: self._on_death(device_id, record))
            self._actors[device_id] = actor
        return actor

    def infos(self) -> list[DeviceInfo]:
        return [actor.info() for actor in self._actors.values()]

    def all(self) -> list[DevicePort]:
        return list(self._actors.values())

    def default(self, residents: dict[str, int]) -> str:
        """Where a load goes that names no device: the GPU with the most free memory, then the fewest models."""

        def preference(device_id: str) -> tuple[int, int, int]:
            return (
                -self.get(device_id).info().vram_free_mb if device_id.startswith("cuda") else 0,
                residents.get(device_id, 0),
                self.listed.index(device_id),
            )

        return min(self.listed, key=preference)
