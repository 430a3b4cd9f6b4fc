"""DeviceSet: the device actors of this host by id and groups of them, made when first asked for. The registry's own."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from neuron.actors.admission import has_memory_figure
from neuron.actors.daemon import DeviceInfo, PoisonRecord
from neuron.actors.device.actor import DeviceActor
from neuron.actors.device.devices import device_index, known_devices, parse_device
from neuron.actors.errors import UnsupportedDevice
from neuron.actors.group.group import DeviceGroup
from neuron.actors.ports import DevicePort

OnDeath = Callable[[tuple[str, ...], PoisonRecord], None]


class DeviceSet:
    """`make` builds the actor of one device; `on_death` hears of every unexpected end, with the ids of what ended:
    one device, or all the ranks of a group (whose devices are told of one by one beside it)."""

    def __init__(self, make: Callable[[str], DeviceActor], on_death: OnDeath) -> None:
        self._make = make
        self._on_death = on_death
        self._actors: dict[str, DeviceActor] = {}
        self._groups: dict[tuple[str, ...], DeviceGroup] = {}
        self._meetings = itertools.count(1)
        known = known_devices()
        #: Always listed: every GPU, or the one CPU device of a host without.
        self.listed = known if known[0].startswith("cuda") else known[:1]
        for device_id in self.listed:
            self.get(device_id)

    def get(self, device_id: str) -> DeviceActor:
        actor = self._actors.get(device_id)
        if actor is None:
            actor = self._make(device_id)
            actor.on_death(lambda record: self._on_death((device_id,), record))
            self._actors[device_id] = actor
        return actor

    def port(self, device_ids: tuple[str, ...]) -> DevicePort:
        """The one device, or the group of these devices, in which the first leads."""
        if len(device_ids) == 1:
            return self.get(device_ids[0])
        group = self._groups.get(device_ids)
        if group is None:
            group = DeviceGroup([self.get(device_id) for device_id in device_ids], self._meetings)
            group.on_death(lambda record: self._on_death(device_ids, record))
            self._groups[device_ids] = group
        return group

    def infos(self) -> list[DeviceInfo]:
        return [actor.info() for actor in self._actors.values()]

    def all(self) -> list[DeviceActor]:
        return list(self._actors.values())

    def choose(
        self, ranks: int, asked: Sequence[str] | None, residents: Mapping[str, int], model_id: str = ""
    ) -> tuple[str, ...]:
        """Where a load of `ranks` parts goes: the first of the devices that were named, or those with the most free
        memory and then the fewest models; always in their own order, so that the same devices are the same group.
        Raises UnsupportedDevice, also for devices of two kinds.
        """
        if asked:
            named = tuple(dict.fromkeys(parse_device(device, model_id=model_id) for device in asked))
        else:
            # CPU devices are as many processes as are wanted; one alone is always the first.
            named = tuple(self.listed if ranks == 1 else known_devices())
        if len(named) < ranks:
            raise UnsupportedDevice(
                f"{ranks} devices are needed, and {len(named)} {'were named' if asked else 'are there'}.",
                model_id=model_id,
                tp_size=ranks,
                suggestion=f"tensor_parallel: {len(named)}",
            )
        if not asked:
            named = tuple(sorted(named, key=lambda device_id: self._preference(device_id, residents)))
        chosen = named[:ranks]
        if len({device_id.partition(":")[0] for device_id in chosen}) > 1:
            raise UnsupportedDevice("The devices of one model must be of one kind.", model_id=model_id)
        return tuple(sorted(chosen, key=device_index))

    def _preference(self, device_id: str, residents: Mapping[str, int]) -> tuple[float, int]:
        """Least first. Without a figure no process of ours has told one: nothing of ours is on it. CPU devices have
        none."""
        free = math.inf
        if device_id.startswith("cuda") and has_memory_figure(info := self.get(device_id).info()):
            free = info.vram_free_mb
        return -free, residents.get(device_id, 0)
