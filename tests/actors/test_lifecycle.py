"""Start and stop of a whole daemon: activation in order, retries, drain, and what shutdown does to everybody."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from neuron.actors.activation import Activator
from neuron.actors.daemon import LoadRequest, ModelState
from neuron.actors.errors import RepoFetchFailed
from neuron.actors.events import TextDelta
from neuron.actors.settings import ModelSettings
from neuron.runtime.errors import NeuronError, ShuttingDown
from tests.actors.host import EOS, daemon, drain, read_until, turn
from tests.harness.scripts import fault

pytestmark = pytest.mark.anyio
FOX = turn("The quick br", "own", " fox", EOS)
ENDLESS = turn("x", repeat=True, delay_ms=2)


def configured(*names: str) -> tuple[ModelSettings, ...]:
    return tuple(ModelSettings(id=f"scripted:test/{name}", aliases=(f"the-{name}",)) for name in names)


async def test_start_up_models_load_in_order_and_one_failure_hurts_nobody(tmp_path: Path) -> None:
    scripts = {"a": FOX, "bad": turn("x", fault=fault("oom", 0, "load")), "c": FOX}
    async with daemon(tmp_path, scripts, load=False, models=configured("a", "bad", "c", "missing")) as host:
        seen = set()
        with anyio.fail_after(30):
            while host.registry.activation().state == "pre_warming":
                now = host.registry.activation()
                ids = [*now.pending, *now.completed, *(model for model, _ in now.failed)]
                ids += [now.in_progress] if now.in_progress is not None else []
                assert sorted(ids) == sorted(set(ids))
                seen.add(now.in_progress)
                await anyio.lowlevel.checkpoint()
        done = host.registry.activation()
        assert done.completed == ("scripted:test/a", "scripted:test/c")
        assert [model for model, _ in done.failed] == ["scripted:test/bad", "scripted:test/missing"]
        assert done.in_progress is None
        assert (await host.ask("c")).text == "The quick brown fox"
        assert host.registry.model("the-c").id == "test/c"


async def test_a_hub_that_cannot_be_reached_is_tried_again() -> None:
    waits: list[float] = []
    tries: list[str] = []

    async def load(request: LoadRequest) -> None:
        tries.append(request.model_id)
        if request.model_id == "far" and tries.count("far") < 4:
            raise RepoFetchFailed("The hub cannot be reached.", model_id="far")

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async with anyio.create_task_group() as tasks:
        activator = Activator((ModelSettings(id="far"), ModelSettings(id="near")), load, tasks, sleep=sleep)
        assert activator.state().pending == ("far", "near")
        await activator.run()
        assert activator.state().state == "ready"
        assert activator.state().completed[0] == "near"
    assert activator.state().completed == ("near", "far")
    assert activator.state().failed == ()
    assert waits == [10.0, 20.0, 40.0]
    assert tries == ["far", "near", "far", "far", "far"]


async def test_a_stop_is_no_failure_of_a_start_up_model() -> None:
    async def load(_request: LoadRequest) -> None:
        raise ShuttingDown("The daemon is shutting down.")

    async with anyio.create_task_group() as tasks:
        activator = Activator((ModelSettings(id="one"), ModelSettings(id="two")), load, tasks)
        await activator.run()
    assert activator.state().failed == ()
    assert activator.state().state == "pre_warming"


async def test_retries_end() -> None:
    waits: list[float] = []

    async def load(request: LoadRequest) -> None:
        raise RepoFetchFailed("The hub cannot be reached.", model_id=request.model_id)

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async with anyio.create_task_group() as tasks:
        activator = Activator((ModelSettings(id="far"),), load, tasks, sleep=sleep)
        await activator.run()
    assert waits == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0]
    assert [model for model, _ in activator.state().failed] == ["far"]


async def test_shutdown_lets_a_running_request_finish_and_wakes_the_waiting(tmp_path: Path) -> None:
    slow = turn("a", "b", EOS, delay_ms=60)
    async with daemon(tmp_path, {"m": slow}, shutdown_seconds=10) as host, anyio.create_task_group() as tasks:
        running = await host.submit("m")
        waiting = await host.submit("m")
        await read_until(running, TextDelta)
        tasks.start_soon(host.registry.shutdown)
        assert (await drain(waiting)).code == "shutting_down"
        assert host.registry.draining()
        for attempt in (host.submit("m"), host.load("other")):
            with pytest.raises(ShuttingDown):
                await attempt
        assert (await drain(running)).text == "b"


async def test_shutdown_ends_what_does_not_finish(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"m": ENDLESS}, shutdown_seconds=0.1) as host:
        stream = await host.submit("m")
        await read_until(stream, TextDelta)
        await host.registry.shutdown()
        assert (await drain(stream)).code == "shutting_down"
        assert host.registry.models() == []
        assert [info.pid for info in host.registry.devices()] == [None]


async def test_shutdown_wakes_who_waits_for_a_load_while_others_drain(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"m": ENDLESS}, shutdown_seconds=60) as host, anyio.create_task_group() as tasks:
        host.registry._loader.load = lambda *_: anyio.sleep_forever()  # type: ignore[assignment, method-assign]
        running = await host.submit("m")
        await read_until(running, TextDelta)
        codes: list[str] = []

        async def wait(act: Callable[[str], Awaitable[object]]) -> None:
            with pytest.raises(NeuronError) as caught:
                await act("n")
            codes.append(caught.value.code)

        tasks.start_soon(wait, host.load)
        while "test/n" not in {info.id for info in host.registry.models()}:
            await anyio.lowlevel.checkpoint()
        tasks.start_soon(wait, host.submit)
        while host.entry("n").turnstile.depth == 0:
            await anyio.lowlevel.checkpoint()
        tasks.start_soon(host.registry.shutdown)
        with anyio.fail_after(20):
            while len(codes) < 2:
                await anyio.lowlevel.checkpoint()
        assert codes == ["shutting_down", "shutting_down"]
        assert host.entry("m").busy
        running.cancel()


async def test_shutdown_during_a_load(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"m": FOX}, load=False) as host, anyio.create_task_group() as tasks:
        errors: list[NeuronError] = []

        async def load() -> None:
            try:
                await host.load("m")
            except NeuronError as error:
                errors.append(error)

        tasks.start_soon(load)
        while not host.registry.models() or host.state("m") is not ModelState.LOADING:
            await anyio.lowlevel.checkpoint()
        await host.registry.shutdown()
        assert [error.code for error in errors] == ["shutting_down"]
