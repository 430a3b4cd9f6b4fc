"""Preflight without a daemon: what `neuron preflight` runs in its own process. Starts no device and loads nothing."""

from typing import Any

import anyio
import msgspec

from neuron.actors.catalogue import Catalogue
from neuron.actors.daemon import LoadRequest
from neuron.actors.device.actor import DeviceActor
from neuron.actors.device_set import DeviceSet
from neuron.actors.loading import Loader
from neuron.actors.loads import LoadDesk
from neuron.actors.settings import Settings


async def preflight_here(settings: Settings, request: LoadRequest) -> dict[str, Any]:
    """The report of a load with these settings, as builtins. Raises PreflightError."""
    report: dict[str, Any] = {}
    async with anyio.create_task_group() as tasks:
        devices = DeviceSet(
            lambda device_id: DeviceActor(device_id, settings.limits, tasks), lambda _ids, _record: None
        )
        catalogue = Catalogue(settings.models)
        desk = LoadDesk(settings, catalogue, devices, Loader(settings), tasks, lambda _entry: None)
        report = msgspec.to_builtins(await desk.preflight(request))
    return report
