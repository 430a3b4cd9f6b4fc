"""Idle unload, load on request, aliases and eviction: opt-in, and never at the cost of a request."""

from collections.abc import Callable
from pathlib import Path

import anyio
import msgspec
import pytest

from neuron.actors import residency as module
from neuron.actors.catalogue import Catalogue
from neuron.actors.daemon import ModelState
from neuron.actors.errors import ModelNotFound, PreflightError
from neuron.actors.events import TextDelta
from neuron.actors.model import ModelActor
from neuron.actors.residency import Residency
from neuron.actors.resident import MIB
from neuron.actors.settings import LimitSettings, ModelSettings, ResidencySettings
from tests.actors.fake_device import FakeDevice, fake_resident
from tests.actors.host import EOS, daemon, read_until, turn

pytestmark = pytest.mark.anyio
FOX = turn("The quick br", "own", " fox", EOS)
ENDLESS = turn("x", repeat=True, delay_ms=2)
LAZY = ResidencySettings(load_on_request=True)


def configured(name: str, **fields: object) -> ModelSettings:
    return ModelSettings(id=f"scripted:test/{name}", **fields)  # type: ignore[arg-type]


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.01)


# -- idle models -------------------------------------------------------------------------------


async def test_an_idle_model_goes_and_a_busy_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECK_S", 0.01)
    models = (configured("fox", keep_alive_seconds=0.05), configured("busy", keep_alive_seconds=0.05))
    scripts = {"fox": FOX, "busy": ENDLESS}
    async with daemon(tmp_path, scripts, models=models, load=False) as host:
        await until(lambda: host.registry.activation().state == "ready")
        stream = await host.submit("busy")
        await read_until(stream, TextDelta)
        await until(lambda: [info.id for info in host.registry.models()] == ["test/busy"])
        await read_until(stream, TextDelta, 50)
        stream.cancel()
        await until(lambda: host.registry.models() == [])


async def test_keep_alive_of_the_model_wins_and_negative_is_for_ever() -> None:
    now = 100.0
    settings = ResidencySettings(keep_alive_seconds=10.0)
    catalogue = Catalogue((configured("long", keep_alive_seconds=50.0), configured("ever", keep_alive_seconds=-1.0)))
    async with anyio.create_task_group() as tasks:
        for name in ("plain", "long", "ever"):
            entry = ModelActor(f"test/{name}", f"scripted:test/{name}", (), LimitSettings(), tasks)
            entry.state, entry.last_used = ModelState.READY, now
            catalogue.add(entry)
        watcher = Residency(settings, catalogue, lambda entry: None, clock=lambda: now)

        def ids() -> list[str]:
            return [entry.model_id for entry in watcher.overdue()]

        assert ids() == []
        now = 110.0
        assert ids() == ["test/plain"]
        now = 1e9
        assert ids() == ["test/plain", "test/long"]


# -- load on request ---------------------------------------------------------------------------


async def test_a_request_loads_a_configured_model_by_any_of_its_names(tmp_path: Path) -> None:
    models = (configured("fox", at_start=False, aliases=("reynard",)),)
    async with daemon(tmp_path, {"fox": FOX}, models=models, load=False, residency=LAZY) as host:
        assert (host.registry.activation().state, host.registry.models()) == ("ready", [])
        answers = []

        async def ask() -> None:
            answers.append((await host.ask("fox")).text)

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(ask)
        assert answers == ["The quick brown fox"] * 4
        assert next(host.registry._loader._handles) == 2
        assert host.registry.model("Reynard").id == "test/fox"
        await host.registry.unload("reynard")
        assert host.registry.models() == []
        assert (await host.ask("fox")).text == "The quick brown fox"


async def test_a_request_while_it_is_unloaded_waits_and_loads_it_again(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"fox": FOX}, models=(configured("fox"),), load=False, residency=LAZY) as host:
        await until(lambda: host.registry.activation().state == "ready")
        host.registry._desk.begin_unload(host.entry("fox"))
        assert (await host.ask("fox")).text == "The quick brown fox"


async def test_only_configured_models_and_only_when_switched_on(tmp_path: Path) -> None:
    models = (configured("fox", at_start=False),)
    async with daemon(tmp_path, {"fox": FOX, "other": FOX}, models=models, load=False, residency=LAZY) as host:
        with pytest.raises(ModelNotFound):
            await host.submit("other")
    async with daemon(tmp_path, {"fox": FOX}, models=models, load=False) as host:
        with pytest.raises(ModelNotFound):
            await host.submit("fox")


async def test_a_load_that_fails_is_not_tried_by_every_request(tmp_path: Path) -> None:
    models = (configured("fox", at_start=False),)
    async with daemon(tmp_path, {}, models=models, load=False, residency=LAZY) as host:
        with pytest.raises(PreflightError):
            await host.submit("fox")
        with pytest.raises(ModelNotFound):
            await host.submit("fox")


# -- eviction ----------------------------------------------------------------------------------


class Desk:
    """Residents of given sizes on one device, and unloads that are over at once."""

    def __init__(self, settings: ResidencySettings, directory: Path, tasks: object) -> None:
        self.catalogue = Catalogue(())
        self.residency = Residency(settings, self.catalogue, self.unload)
        self.unloaded: list[str] = []
        self._directory = directory
        self._tasks = tasks

    def add(self, name: str, megabytes: int, last_used: float, state: ModelState = ModelState.READY) -> ModelActor:
        entry = ModelActor(name, f"s:{name}", (), LimitSettings(), self._tasks)  # type: ignore[arg-type]
        entry.device_ids, entry.state = ("cpu",), state
        if megabytes:
            resident = fake_resident(FakeDevice([97]), self._directory)
            resident.loaded = msgspec.structs.replace(resident.loaded, weights_bytes=megabytes * MIB)
            entry.resident = resident
        entry.last_used = last_used
        self.catalogue.add(entry)
        return entry

    def unload(self, entry: ModelActor) -> None:
        self.unloaded.append(entry.model_id)
        entry.release()
        self.catalogue.remove(entry)
        entry.gone.set()


async def test_the_least_recently_used_go_until_it_fits(tmp_path: Path) -> None:
    async with anyio.create_task_group() as tasks:
        desk = Desk(ResidencySettings(evict=True, budget_mb=100), tmp_path, tasks)
        for name, used in (("a/new", 3.0), ("a/old", 1.0), ("a/mid", 2.0)):
            desk.add(name, 30, used)
        entry = desk.add("a/wanted", 0, 9.0, ModelState.LOADING)
        assert desk.residency.within_reach(entry, "cpu", None) == 100 * MIB
        await desk.residency.take(entry, "cpu", 10 * MIB, None)
        assert desk.unloaded == []
        await desk.residency.take(entry, "cpu", 50 * MIB, None)
        assert desk.unloaded == ["a/old", "a/mid"]
        assert entry.claimed_bytes == 50 * MIB
        second = desk.add("a/second", 0, 9.0, ModelState.LOADING)
        # What the first load was promised is no longer there for the second.
        assert desk.residency.within_reach(second, "cpu", None) == 50 * MIB
        desk.catalogue.require("a/new").release()


async def test_models_with_requests_stay_and_nothing_goes_unasked(tmp_path: Path) -> None:
    async with anyio.create_task_group() as tasks:
        desk = Desk(ResidencySettings(evict=True, budget_mb=100), tmp_path, tasks)
        busy = desk.add("a/busy", 60, 1.0)
        busy.turnstile.reserve("r1", "p")
        desk.add("a/idle", 20, 2.0)
        entry = desk.add("a/wanted", 0, 9.0, ModelState.LOADING)
        assert desk.residency.within_reach(entry, "cpu", None) == 40 * MIB
        # The device's own figure counts when it is less.
        assert desk.residency.within_reach(entry, "cpu", 5 * MIB) == 25 * MIB
        await desk.residency.take(entry, "cpu", 40 * MIB, None)
        assert desk.unloaded == ["a/idle"]
        busy.release()
        off = Desk(ResidencySettings(budget_mb=100), tmp_path, tasks)
        off.add("a/idle", 90, 1.0)
        wanted = off.add("a/wanted", 0, 9.0, ModelState.LOADING)
        assert off.residency.within_reach(wanted, "cpu", None) == 10 * MIB
        await off.residency.take(wanted, "cpu", 50 * MIB, None)
        assert off.unloaded == []
        off.catalogue.require("a/idle").release()
        unlimited = Residency(ResidencySettings(evict=True), off.catalogue, off.unload)
        assert unlimited.within_reach(wanted, "cpu", None) is None


async def test_room_on_every_device_of_a_group(tmp_path: Path) -> None:
    """The device that has least decides; what stands in the way goes on each of them."""
    async with anyio.create_task_group() as tasks:
        desk = Desk(ResidencySettings(evict=True, budget_mb=100), tmp_path, tasks)
        desk.add("a/first", 30, 1.0)
        other = desk.add("a/second", 60, 2.0)
        other.device_ids = ("cpu:1",)
        both = desk.add("a/both", 20, 3.0)
        both.device_ids = ("cpu", "cpu:1")
        entry = desk.add("a/wanted", 0, 9.0, ModelState.LOADING)
        entry.device_ids = ("cpu", "cpu:1")
        free = {"cpu": None, "cpu:1": 15 * MIB}
        room = desk.residency.room(entry, entry.device_ids, free.get)
        # On cpu all 100 once all are gone, on cpu:1 15 and what the two there hold.
        assert room.within_reach() == 95 * MIB
        free["cpu:1"] = None
        await room.take(45 * MIB)
        assert desk.unloaded == ["a/second"]
        await room.take(75 * MIB)
        assert desk.unloaded == ["a/second", "a/first"]
        desk.catalogue.require("a/both").release()


async def test_kept_prefixes_count_as_memory_of_their_model(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"fox": FOX}) as host:
        entry = host.entry("fox")
        before = entry.claimed_bytes
        await host.ask("fox", "word " * 400)
        assert entry.resident is not None
        assert entry.resident.prefix is not None
        kept = entry.resident.prefix.figures().bytes_used
        assert kept > 0
        assert entry.claimed_bytes == before + kept
        entry.resident.device_ids = ("cuda:0",)
        assert entry.claimed_bytes == before
