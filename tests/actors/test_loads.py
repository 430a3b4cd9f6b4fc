"""Loads and unloads over real device processes: single flight, conflicts, races with streams, kept failures."""

import json
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from neuron.actors.daemon import LoadOutcome, LoadProgress, LoadRequest, ModelState
from neuron.actors.errors import AlreadyLoaded, ModelNotFound
from neuron.actors.events import TextDelta
from neuron.actors.loads import KEPT_FAILURES
from neuron.actors.resident import Resident
from neuron.runtime.errors import NeuronError
from neuron.runtime.logs import redirected
from tests.actors.host import EOS, daemon, drain, read_until, turn

pytestmark = pytest.mark.anyio
FOX = turn("The quick br", "own", " fox", EOS)
ENDLESS = turn("x", repeat=True, delay_ms=2)


async def test_bare_qualified_and_other_case_name_the_same_model(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"fox": FOX}) as host:
        infos = [host.registry.model(name) for name in ("test/fox", "scripted:test/fox", "Test/FOX")]
        assert {info.id for info in infos} == {"test/fox"}
        assert {info.source_id for info in infos} == {"scripted:test/fox"}
        with pytest.raises(ModelNotFound):
            host.registry.model("test/other")
        again = await host.registry.load(LoadRequest(model_id="test/fox"))
        assert again == LoadOutcome("loaded", already=True)
        await host.registry.unload("test/fox")
        assert host.registry.models() == []


async def test_two_loads_at_once_are_one(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"fox": FOX}, load=False) as host:
        outcomes: list[object] = []

        async def load() -> None:
            outcomes.append(await host.load("fox"))

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(load)
        assert outcomes == [LoadOutcome("loaded")] * 8
        assert next(host.registry._loader._handles) == 2


async def test_a_conflicting_specification_is_refused(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"fox": FOX}) as host:
        assert (await host.load("fox", devices=("cpu",))).already
        with pytest.raises(AlreadyLoaded, match="already loaded") as caught:
            await host.load("fox", devices=("cpu:1",))
        assert caught.value.status == 409
        with pytest.raises(AlreadyLoaded):
            await host.load("fox", max_context=17)


async def test_progress_of_a_load_ends_with_its_outcome(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"fox": FOX}, load=False) as host:
        request = LoadRequest(model_id="scripted:test/fox")
        reports = [report async for report in host.registry.load_progress(request)]
        assert reports[-1] == LoadOutcome("loaded")
        assert all(isinstance(report, LoadProgress) for report in reports[:-1])
        assert len(reports) > 1


async def test_a_chat_during_a_load_waits_for_it(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"fox": FOX}, load=False) as host, anyio.create_task_group() as tasks:
        tasks.start_soon(host.load, "fox")
        while not host.registry.models():
            await anyio.lowlevel.checkpoint()
        assert host.state("fox") is ModelState.LOADING
        assert (await host.ask("fox")).text == "The quick brown fox"


async def test_unload_while_streaming_and_load_during_unload(tmp_path: Path) -> None:
    """LIFE-08."""
    async with daemon(tmp_path, {"endless": ENDLESS}) as host:
        stream = await host.submit("endless", max_tokens=4000)
        waiting = await host.submit("endless")
        await read_until(stream, TextDelta)
        old = host.entry("endless")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(host.registry.unload, "test/endless")
            await anyio.lowlevel.checkpoint()
            assert host.state("endless") is ModelState.UNLOADING
            with pytest.raises(NeuronError) as caught:
                await host.submit("endless")
            assert caught.value.code == "model_unloading"
            assert await host.load("endless") == LoadOutcome("loaded")
        assert host.entry("endless") is not old
        assert (await drain(stream)).code == "model_unloading"
        assert (await drain(waiting)).code == "model_unloading"
        assert (await host.ask("endless", max_tokens=2)).text == "xx"
        with pytest.raises(ModelNotFound):
            await host.registry.unload("test/nothing")


async def test_an_unload_wins_over_a_load_that_has_just_ended(tmp_path: Path) -> None:
    """The load can no longer be cancelled, and nobody may find the model ready again."""
    async with daemon(tmp_path, {"fox": FOX}, load=False) as host:
        host.write("other", FOX)
        await host.load("other")
        load, loaded, go_on = host.registry._loader.load, anyio.Event(), anyio.Event()

        async def late(*arguments: Any) -> Resident:
            resident = await load(*arguments)
            loaded.set()
            with anyio.CancelScope(shield=True):
                await go_on.wait()
            return resident

        host.registry._loader.load = late  # type: ignore[method-assign, assignment]
        codes: list[str] = []

        async def ask() -> None:
            with pytest.raises(NeuronError) as caught:
                await host.load("fox")
            codes.append(caught.value.code)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await loaded.wait()
            entry = host.entry("fox")
            await host.registry.unload("test/fox")
            go_on.set()
        assert codes == ["model_unloading"]
        assert entry.state is ModelState.UNLOADING
        assert entry.resident is None
        assert [info.id for info in host.registry.models(everything=True)] == ["test/other"]
        host.registry._loader.load = load  # type: ignore[method-assign]
        assert await host.load("fox") == LoadOutcome("loaded")
        assert (await host.ask("fox")).text == "The quick brown fox"


async def test_an_unload_waits_for_no_thread_of_the_load(tmp_path: Path) -> None:
    """A tokenizer on a disk that does not answer, say."""
    async with daemon(tmp_path, {"fox": FOX}, load=False) as host, anyio.create_task_group() as tasks:
        begun, over = threading.Event(), threading.Event()

        def stuck(_artifact: object) -> Any:
            begun.set()
            over.wait(60.0)

        host.registry._loader._text = stuck  # type: ignore[method-assign, assignment]
        codes: list[str] = []

        async def ask() -> None:
            with pytest.raises(NeuronError) as caught:
                await host.load("fox")
            codes.append(caught.value.code)
            over.set()

        tasks.start_soon(ask)
        await anyio.to_thread.run_sync(begun.wait)
        await host.registry.unload("test/fox")
        with anyio.move_on_after(10.0):
            while not codes:
                await anyio.lowlevel.checkpoint()
        ended = list(codes)
        over.set()
        assert ended == ["model_unloading"]


async def test_a_load_that_fails_is_kept_with_its_reason(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"fox": FOX}, load=False) as host:
        with pytest.raises(NeuronError) as caught:
            await host.load("missing")
        assert caught.value.status == 422
        assert host.registry.models() == []
        failed = host.registry.models(everything=True)
        assert [(info.id, info.state) for info in failed] == [("test/missing", ModelState.FAILED)]
        assert failed[0].reason is not None
        assert failed[0].reason.startswith(caught.value.code)
        with pytest.raises(ModelNotFound):
            await host.submit("missing")
        host.write("missing", FOX)
        assert await host.load("missing") == LoadOutcome("loaded")
        assert (await host.ask("missing")).text == "The quick brown fox"


async def test_only_the_latest_loads_that_failed_are_remembered(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"fox": FOX}) as host:
        for number in range(KEPT_FAILURES + 5):
            with pytest.raises(NeuronError):
                await host.load(f"missing-{number}")
        infos = host.registry.models(everything=True)
        assert len(infos) == 1 + KEPT_FAILURES
        assert {info.id for info in infos} >= {"test/fox", f"test/missing-{KEPT_FAILURES + 4}", "test/missing-5"}
        assert set(host.registry.figures()) == {info.id for info in infos}


@pytest.mark.parametrize("device", ["gpu", "cpu:99", "cuda:7", "../x", "9"])
async def test_an_unknown_device_is_a_typed_error(tmp_path: Path, device: str) -> None:
    async with daemon(tmp_path, {"fox": FOX}, load=False) as host:
        with pytest.raises(NeuronError) as caught:
            await host.load("fox", devices=(device,))
        assert caught.value.code == "unsupported_device"
        assert [info.id for info in host.registry.devices()] == ["cpu"]
        assert await host.load("fox") == LoadOutcome("loaded")


async def test_a_poisoned_model_comes_back_as_it_was(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"fox": FOX}, load=False) as host:
        await host.load("fox", devices=("cpu:1",))
        host.kill("cpu:1")
        await host.until_state("fox", ModelState.POISONED)
        await host.load("fox")
        assert host.registry.model("test/fox").device_ids == ("cpu:1",)


async def test_a_client_that_leaves_during_the_gates_gives_its_seat_back(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"fox": FOX}) as host:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(host.submit, "fox")
            await anyio.lowlevel.checkpoint()
            assert host.entry("fox").turnstile.depth == 1
            tasks.cancel_scope.cancel()
        assert host.entry("fox").turnstile.depth == 0
        assert (await host.ask("fox")).text == "The quick brown fox"


async def test_unload_of_one_of_two_models_keeps_the_process_and_the_other(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"fox": FOX, "endless": ENDLESS}) as host:
        pid = host.pid()
        await host.registry.unload("test/endless")
        assert host.pid() == pid
        assert (await host.ask("fox")).text == "The quick brown fox"
        await host.registry.unload("test/fox")
        assert [info.pid for info in host.registry.devices()] == [None]
        await host.load("fox")
        assert host.pid() != pid


async def test_names_that_never_were_a_model_leave_no_figures(tmp_path: Path) -> None:
    """Whoever may load may name anything: nothing is kept of it once it is unloaded."""
    async with daemon(tmp_path, {"fox": FOX}) as host:
        for number in range(5):
            with pytest.raises(NeuronError):
                await host.load(f"none{number}")
            await host.registry.unload(f"scripted:test/none{number}")
        assert list(host.registry.figures()) == ["test/fox"]
        await host.ask("fox")
        await host.registry.unload("test/fox")
        assert host.registry.figures()["test/fox"].requests == 1


async def test_a_load_on_a_shared_device_is_stopped_midway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process lives on with its other model; the load ends at its next step instead of running to its end."""
    control, log = tmp_path / "control.json", tmp_path / "log"
    control.write_text("[]")
    monkeypatch.setenv("NEURON_FAILPOINTS", str(control))
    with log.open("wb") as file, redirected(file.fileno(), level="info"):
        async with daemon(tmp_path, {"fox": FOX}) as host, anyio.create_task_group() as tasks:
            host.write("slow", FOX)
            pid = host.pid()
            control.write_text('[{"point": "worker.load.progress", "action": "sleep", "seconds": 0.5, "count": 100}]')
            codes: list[str] = []

            async def load() -> None:
                with pytest.raises(NeuronError) as caught:
                    await host.load("slow")
                codes.append(caught.value.code)

            tasks.start_soon(load)
            with anyio.fail_after(20):
                while (entry := host.registry._catalogue.find("test/slow")) is None or entry.job is None:
                    await anyio.lowlevel.checkpoint()
                while entry.job.progress.stage != "read":
                    await anyio.lowlevel.checkpoint()
            await host.registry.unload("test/slow")
            assert (await host.ask("fox")).text == "The quick brown fox"
            assert host.pid() == pid
        assert codes == ["model_unloading"]
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert events.count("load stopped") == 1
    assert "job failed" not in events
