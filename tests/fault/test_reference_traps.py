"""Traps that the daemon which this one replaces fell into, and rows 19, 28, 37 and 67, on a daemon without HTTP.

Others are tests elsewhere: 16 in test_rows_23_27, 30 in tests/runtime/test_lifecycle, those of formats beside the code.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from neuron.actors import admission, loads, shutdown
from neuron.actors.activation import Activator
from neuron.actors.daemon import LoadOutcome, LoadRequest, ModelState
from neuron.actors.decoding import Decoding
from neuron.actors.errors import InsufficientVram, RateLimited, RepoFetchFailed
from neuron.actors.events import TextDelta
from neuron.actors.settings import ModelSettings
from neuron.runtime import mapping
from neuron.runtime.errors import NeuronError, ShuttingDown
from neuron.runtime.logs import flush_logs, redirected
from tests.actors.host import EOS, FAST, daemon, drain, read_until, turn
from tests.harness.invariants import gone

pytestmark = pytest.mark.anyio
FOX = turn("The quick br", "own", " fox", EOS)
ENDLESS = turn("x", repeat=True, delay_ms=2, when="endless")


class Lines:
    def __init__(self, path: Path) -> None:
        self._path = path

    def of(self, *events: str) -> list[dict[str, Any]]:
        flush_logs(5.0)
        lines = [json.loads(line) for line in self._path.read_text().splitlines()]
        return [line for line in lines if line["event"] in events]


@pytest.fixture(name="lines")
def _lines(tmp_path: Path) -> Iterator[Lines]:
    path = tmp_path / "log"
    with path.open("wb") as file, redirected(file.fileno()):
        yield Lines(path)


async def test_trap_12_the_control_plane_never_asks_a_busy_device(tmp_path: Path) -> None:
    """Views are made of what is known: while a step runs for seconds they return without a turn of the loop."""
    slow = turn("x", delay_ms=1000, repeat=True, when="endless")
    async with daemon(tmp_path, {"m": [slow, FOX]}) as host:
        stream = await host.submit("m", "endless")
        while host.entry("m").turnstile.active is None:
            await anyio.lowlevel.checkpoint()
        for _ in range(100):
            assert host.registry.models()
            assert host.registry.load_figures()[0].in_flight == 1
            assert host.registry.devices()[0].state == "ready"
            assert host.registry.discovery()["devices"]
        stream.cancel()


async def test_trap_22_a_hub_that_is_not_there_at_boot_is_tried_again() -> None:
    """Three hosts stood without models for 14 h after a power cut."""
    tries: list[str] = []
    waits: list[float] = []

    async def load(request: LoadRequest) -> None:
        tries.append(request.model_id)
        if len(tries) < 4:
            raise RepoFetchFailed("The hub cannot be reached.", model_id=request.model_id)

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async with anyio.create_task_group() as tasks:
        activator = Activator((ModelSettings(id="o/n"),), load, tasks, sleep=sleep)
        await activator.run()
        assert activator.state().state == "ready"
    assert activator.state().completed == ("o/n",)
    assert activator.state().failed == ()
    assert waits == sorted(waits)


async def test_trap_26_memory_is_a_gate_one_waits_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session of half an hour was lost to two refusals with an empty queue: a short want is waited out."""
    asked = 0

    def check(*_: object) -> None:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise InsufficientVram("short")

    async with daemon(tmp_path, {"m": FOX}) as host:
        monkeypatch.setattr(admission, "check_memory", check)
        monkeypatch.setattr(admission, "MEMORY_POLL_S", 0.01)
        assert (await host.ask("m")).text == "The quick brown fox"
        assert asked == 3


async def test_trap_27_saturation_is_no_fault(tmp_path: Path) -> None:
    """A gateway evicted the model in use: a busy model stays servable and ready."""
    async with daemon(tmp_path, {"m": [ENDLESS, FOX]}) as host:
        streams = [await host.submit("m", "endless") for _ in range(3)]
        info = host.registry.model("test/m")
        assert (info.state, info.servable) == (ModelState.READY, True)
        for stream in streams:
            stream.cancel()
        await host.until_idle("m")


async def test_trap_28_every_refusal_has_a_line_with_its_causes(tmp_path: Path, lines: Lines) -> None:
    script = {
        "turns": [turn("a", fault={"kind": "host", "phase": "decode", "at": 0, "text": "inner cause", "times": 9})]
    }
    async with daemon(tmp_path, {"m": script}) as host:
        assert (await host.ask("m", req_id="host")).code == "internal_error"
        with pytest.raises(NeuronError):
            await host.submit("absent", req_id="absent")
        assert host.state("m") is ModelState.READY
    by_id = {line["req_id"]: line for line in lines.of("failed")}
    assert set(by_id) == {"host", "absent"}
    assert any("inner cause" in cause for cause in by_id["host"]["cause"])


async def test_trap_29_one_load_per_id_however_many_ask(tmp_path: Path, lines: Lines) -> None:
    """Five workers loaded one shard: 40 minutes down."""
    async with daemon(tmp_path, {"m": FOX}, load=False) as host:
        outcomes: list[LoadOutcome] = []

        async def load() -> None:
            outcomes.append(await host.load("m"))

        async with anyio.create_task_group() as tasks:
            for _ in range(12):
                tasks.start_soon(load)
        assert {outcome.status for outcome in outcomes} == {"loaded"}
    assert len(lines.of("load started")) == 1


async def test_trap_31_waiters_are_woken_at_the_stop(tmp_path: Path) -> None:
    """Each restart took two minutes and a SIGKILL: a queued waiter kept the drain open."""
    async with daemon(tmp_path, {"m": [ENDLESS, FOX]}, shutdown_seconds=30.0) as host:
        running = await host.submit("m", "endless", max_tokens=400)
        await read_until(running, TextDelta)
        waiting = [await host.submit("m") for _ in range(5)]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(host.registry.shutdown)
            for stream in waiting:
                assert (await drain(stream)).code == ShuttingDown.code
            assert (await drain(running)).finish


async def test_trap_32_one_caller_cannot_starve_another(tmp_path: Path) -> None:
    """A user was starved by an anonymous batch: shares are counted for each principal, the anonymous ones' too."""
    limits = msgspec.structs.replace(FAST, per_principal=2)
    async with daemon(tmp_path, {"m": [ENDLESS, FOX]}, limits=limits) as host:
        batch = [await host.submit("m", "endless", principal="peer:10.0.0.1") for _ in range(2)]
        for _ in range(20):
            with pytest.raises(RateLimited) as caught:
                await host.submit("m", principal="peer:10.0.0.1")
            assert caught.value.extra["kind"] == "per_principal"
        theirs = await host.submit("m", principal="account/key")
        for stream in batch:
            stream.cancel()
        assert (await drain(theirs)).text == "The quick brown fox"


async def test_trap_35_ends_tell_themselves_apart(tmp_path: Path, lines: Lines) -> None:
    """Finished, capped and abandoned turns looked alike."""
    async with daemon(tmp_path, {"m": [ENDLESS, FOX]}) as host:
        await host.ask("m", req_id="finished")
        await host.ask("m", "endless", max_tokens=3, req_id="capped")
        gone = await host.submit("m", "endless", req_id="abandoned")
        await read_until(gone, TextDelta)
        gone.cancel()
        await host.until_idle("m")
    ends = {line["req_id"]: line for line in lines.of("done", "failed")}
    assert ends["finished"]["finish_reason"] == "stop"
    assert ends["capped"]["finish_reason"] == "length"
    assert ends["abandoned"]["error_code"] == "client_disconnected"
    assert all("cached_tokens" in ends[name] for name in ("finished", "capped"))


async def test_row_37_shared_memory_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LIFE-04: refused with both numbers before anything is written, and the device process lives on."""
    async with daemon(tmp_path, {"m": FOX}) as host:
        host.write("wide", FOX, vocab_size=248_320)
        with monkeypatch.context() as patch:
            patch.setattr(mapping, "_free_bytes", lambda: 1_000_000)
            with pytest.raises(NeuronError) as caught:
                await host.load("wide")
        assert caught.value.code == "insufficient_shm"
        assert int(str(caught.value.extra["needed_bytes"])) > int(str(caught.value.extra["free_bytes"])) == 1_000_000
        assert (await host.ask("m")).text == "The quick brown fox"
        assert (await host.load("wide")).status == "loaded"


async def test_row_28_models_that_cannot_be_let_go_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    """An unload that hangs does not hold the daemon: it says what it leaves, and no process outlives it."""
    async with daemon(tmp_path, {"m": FOX}, shut_down=False) as host:
        pid = host.pid()
        monkeypatch.setattr(shutdown, "UNLOAD_S", 1.0)
        monkeypatch.setattr(loads.LoadDesk, "begin_unload", lambda *_: None)
        with anyio.fail_after(20):
            await host.registry.shutdown()
        assert gone(pid)
    (line,) = lines.of("leaving 1 model(s) loaded")
    assert (line["level"], line["models"]) == ("error", ["test/m"])


async def test_row_67_a_process_that_ignores_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unload ends within its bound whatever the device process does; it is killed and reaped."""
    monkeypatch.setattr(loads, "UNLOAD_S", 1.0)
    stuck = turn("x", when="stuck", delay_ms=60_000)
    async with daemon(tmp_path, {"m": [stuck, FOX]}) as host:
        pid = host.pid()
        stream = await host.submit("m", "stuck")
        while host.entry("m").turnstile.active is None:
            await anyio.lowlevel.checkpoint()
        with anyio.fail_after(10):
            await host.registry.unload("test/m")
        assert (await drain(stream)).code in ("model_unloading", "shutting_down", "worker_died")
        assert gone(pid)
        await host.load("m")
        assert (await host.ask("m")).text == "The quick brown fox"


async def test_row_19_a_defect_in_the_daemon_costs_one_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python error in the daemon's own half poisons nothing, and neither does a cancelled task."""
    async with daemon(tmp_path, {"m": [ENDLESS, FOX]}) as host:
        pid = host.pid()
        with monkeypatch.context() as patch:
            patch.setattr(Decoding, "_sample", lambda *_: 1 / 0)
            assert (await host.ask("m")).code == "internal_error"
        assert host.state("m") is ModelState.READY
        stream = await host.submit("m", "endless")
        await read_until(stream, TextDelta)
        stream.cancel()
        await host.until_idle("m")
        assert (host.state("m"), host.pid()) == (ModelState.READY, pid)
        assert (await host.ask("m")).text == "The quick brown fox"
