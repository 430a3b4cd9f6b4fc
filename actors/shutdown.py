"""The order in which a daemon lets go: drain, end what is left, unload every model, end every device process."""

import time

import anyio

from neuron.actors.catalogue import Catalogue
from neuron.actors.daemon import ModelState
from neuron.actors.device_set import DeviceSet
from neuron.actors.loads import UNLOAD_S, LoadDesk
from neuron.runtime.errors import NeuronError, ShuttingDown
from neuron.runtime.logs import get_logger

log = get_logger(__name__)

#: How long a session that was told to end may take: one prefill chunk or one step.
END_S = 5.0


def _stopping() -> NeuronError:
    return ShuttingDown("The daemon is shutting down.")


async def shut_down(catalogue: Catalogue, desk: LoadDesk, devices: DeviceSet, drain_s: float) -> None:
    """Waiters, for a turn or a load, get ShuttingDown at once; running requests have `drain_s` seconds to finish."""
    desk.closed = True
    for entry in catalogue:
        if entry.state in (ModelState.LOADING, ModelState.RECOVERING):
            desk.begin_unload(entry)
        entry.end_sessions(_stopping, waiting_only=True)
    await _until_idle(catalogue, drain_s)
    for entry in catalogue:
        entry.end_sessions(_stopping)
    await _until_idle(catalogue, END_S, report=True)
    with anyio.move_on_after(UNLOAD_S + 1.0):
        async with anyio.create_task_group() as tasks:
            for entry in catalogue:
                desk.begin_unload(entry)
                tasks.start_soon(entry.gone.wait)
    left = [entry.model_id for entry in catalogue if entry.state is not ModelState.FAILED]
    if left:
        event = f"leaving {len(left)} model(s) loaded"
        log.error(event, models=left)
    with anyio.move_on_after(UNLOAD_S):
        async with anyio.create_task_group() as tasks:
            for device in devices.all():
                tasks.start_soon(device.stop, END_S)
    stuck = [info.id for info in devices.infos() if info.pid is not None]
    if stuck:
        log.error("device processes are stuck", devices=stuck)


async def _until_idle(catalogue: Catalogue, seconds: float, *, report: bool = False) -> None:
    deadline = time.monotonic() + seconds
    for entry in catalogue:
        if not await entry.wait_idle(max(0.0, deadline - time.monotonic())) and report:
            log.error("a request is stuck", model=entry.model_id, device=entry.where)
