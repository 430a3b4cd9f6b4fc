"""A device process started ahead of the daemon: adopted once, by its own device; discarded otherwise."""

import os
import signal
from pathlib import Path

import anyio
import pytest

from neuron.actors.device.actor import DeviceActor
from neuron.actors.device.spare import Spare
from neuron.actors.settings import LimitSettings, ModelSettings, Settings, SourceKind, SourceSettings
from neuron.api.serve import start_spare

pytestmark = pytest.mark.anyio


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


async def test_it_is_adopted_once_and_then_processes_are_fresh() -> None:
    spare = Spare("cpu", "warning")
    pid = spare.pid
    async with anyio.create_task_group() as tasks:
        actor = DeviceActor("cpu", LimitSettings(), tasks, spare=spare)
        ready = await actor.ensure_started()
        assert ready.pid == pid
        assert spare.taken
        spare.discard()
        assert not gone(pid)
        await actor.release()
        assert (await actor.ensure_started()).pid != pid
        assert gone(pid)
        await actor.stop()


async def test_one_that_died_ahead_of_its_use_costs_one_start() -> None:
    spare = Spare("cpu", "warning")
    os.kill(spare.pid, signal.SIGKILL)
    os.waitid(os.P_PID, spare.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - it is dead already
    async with anyio.create_task_group() as tasks:
        actor = DeviceActor("cpu", LimitSettings(), tasks, spare=spare)
        assert (await actor.ensure_started()).pid != spare.pid
        assert actor.deaths == 0
        await actor.stop()


def test_discarded_it_is_gone() -> None:
    spare = Spare("cpu", "warning")
    spare.discard()
    assert gone(spare.pid)
    spare.discard()


@pytest.mark.parametrize(
    ("models", "device"),
    [
        ((), None),
        ((ModelSettings(id="scripted:a/b"),), None),
        ((ModelSettings(id="demo:a/b", at_start=False),), None),
        ((ModelSettings(id="no-slash"),), None),
        ((ModelSettings(id="demo:a/b", devices=("cpu:9999",)),), None),
        ((ModelSettings(id="scripted:a/b"), ModelSettings(id="demo:a/b", devices=("cpu:1",))), "cpu:1"),
    ],
)
def test_only_weights_that_load_at_start_are_worth_one(models: tuple[ModelSettings, ...], device: str | None) -> None:
    scripts = SourceSettings(kind=SourceKind.SCRIPTED, path=Path("/none"))
    spare = start_spare(Settings(enable_scripted=True, sources={"scripted": scripts}, models=models))
    assert (spare.device_id if spare is not None else None) == device
    if spare is not None:
        spare.discard()
