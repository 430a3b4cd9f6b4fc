"""A model on several device processes, scripted: answers, deaths in every phase, faults of one rank, cures."""

import functools
import json
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from neuron.actors.daemon import LoadOutcome, ModelState, PoisonRecord
from neuron.actors.errors import AlreadyLoaded, ModelPoisoned, TpInitFailed
from neuron.actors.events import TextDelta
from neuron.actors.group.meeting import PREFIX
from neuron.actors.settings import ModelSettings, RecoveryMode, RecoverySettings, ResidencySettings
from neuron.runtime.errors import NeuronError, WorkerDied
from tests.actors.host import EOS, FAST, Host, daemon, drain, read_until, turn
from tests.harness.invariants import gone
from tests.harness.scripts import fault

pytestmark = pytest.mark.anyio
FOX = turn("The quick br", "own", " fox", EOS)
ENDLESS = turn("x", repeat=True, delay_ms=2, when="endless")
RANKS = ("cpu", "cpu:1")
#: The library's own exceptions are imported when one is first raised.
PATIENT = msgspec.structs.replace(FAST, step_seconds=30.0)
#: The aim is 2 s; a shared machine gets room. That nothing waits for a deadline is what this proves.
BOUND_S = 6.0


@asynccontextmanager
async def group(directory: Path, *turns: dict[str, Any], ranks: int = 2, **options: Any) -> AsyncIterator[Host]:
    async with daemon(directory, {"m": list(turns)}, load=False, **options) as host:
        await host.load("m", tensor_parallel=ranks)
        yield host


def arm(path: Path, monkeypatch: pytest.MonkeyPatch, *entries: dict[str, Any]) -> Path:
    path.write_text(json.dumps(entries))
    monkeypatch.setenv("NEURON_FAILPOINTS", str(path))
    return path


async def record(host: Host) -> PoisonRecord:
    """The model's record, once the rank that was the cause is reaped."""
    await until(lambda: getattr(host.registry.model("test/m").poison, "exit_status", None))
    poison = host.registry.model("test/m").poison
    assert poison is not None
    return poison


async def until(what: Callable[[], object], within_s: float = BOUND_S) -> None:
    deadline = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline
        await anyio.sleep(0.01)


@pytest.mark.parametrize("ranks", [2, 4])
async def test_a_group_answers_like_one_device(tmp_path: Path, ranks: int) -> None:
    async with group(tmp_path, FOX, ranks=ranks) as host:
        info = host.registry.model("test/m")
        assert info.tensor_parallel == ranks
        assert info.device_ids == ("cpu", "cpu:1", "cpu:2", "cpu:3")[:ranks]
        assert info.devices == tuple(range(ranks))
        for _ in range(3):
            assert (await host.ask("m")).text == "The quick brown fox"
        states = {info.id: info.state for info in host.registry.devices()}
        assert list(states.values()) == ["ready"] * ranks
        pids = [host.pid(device) for device in states]
        await host.registry.unload("test/m")
        assert all(gone(pid) for pid in pids)
        assert await host.load("m", tensor_parallel=ranks) == LoadOutcome("loaded")
        assert (await host.ask("m")).text == "The quick brown fox"


@pytest.mark.parametrize(
    ("phase", "victim"), [("idle", "cpu"), ("idle", "cpu:1"), ("prefill", "cpu:1"), ("decode", "cpu")]
)
async def test_rank_death_ends_the_group(tmp_path: Path, phase: str, victim: str) -> None:
    slow = turn("x", when="slow", prefill_ms_per_token=1000)
    async with group(tmp_path, slow, ENDLESS, FOX) as host:
        pids = [host.pid(device) for device in RANKS]
        stream = None
        if phase == "prefill":
            stream = await host.submit("m", "slow")
            await anyio.sleep(0.3)
        elif phase == "decode":
            stream = await host.submit("m", "endless")
            await read_until(stream, TextDelta, 3)
        began = time.monotonic()
        host.kill(victim)
        if stream is not None:
            assert (await drain(stream, BOUND_S)).code == "worker_died"
        await host.until_state("m", ModelState.POISONED, BOUND_S)
        await until(lambda: all(gone(pid) for pid in pids))
        assert time.monotonic() - began < BOUND_S
        rank, poison = RANKS.index(victim), await record(host)
        assert (poison.rank, poison.exit_status) == (rank, "signal SIGKILL")
        assert poison.reason == f"worker_exited: signal SIGKILL (rank {rank} on {victim})"
        # A figure may just be asked of an idle process.
        assert poison.phase in ((phase, "control") if phase == "idle" else (phase,))
        with pytest.raises(ModelPoisoned):
            await host.submit("m")
        await host.registry.unload("test/m")
        assert await host.load("m", tensor_parallel=2) == LoadOutcome("loaded")
        assert (await host.ask("m")).text == "The quick brown fox"


@pytest.mark.parametrize("point", ["tp.init", "worker.load.begin", "worker.load.end", "tp.agree"])
async def test_rank_death_in_a_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    # The second agreement is the load's, after the group's own.
    entry = {
        "point": point,
        "device": "cpu:1",
        "action": "signal",
        "signal": 9,
        "start": 2 if point == "tp.agree" else 1,
    }
    arm(tmp_path / "c.json", monkeypatch, entry)
    async with daemon(tmp_path, {"m": FOX}, load=False) as host:
        began = time.monotonic()
        with pytest.raises(WorkerDied) as caught:
            await host.load("m", tensor_parallel=2)
        assert caught.value.extra["signal"] == "SIGKILL"
        assert time.monotonic() - began < 2 * BOUND_S  # the start of two processes included
        assert host.registry.models(everything=True)[0].state is ModelState.FAILED
        arm(tmp_path / "c.json", monkeypatch)
        await host.load("m", tensor_parallel=2)
        assert (await host.ask("m")).text == "The quick brown fox"


@pytest.mark.parametrize("phase", ["idle", "decode"])
async def test_a_stopped_rank_is_found(tmp_path: Path, phase: str) -> None:
    limits = msgspec.structs.replace(FAST, step_seconds=1.5)
    async with group(tmp_path, ENDLESS, FOX, limits=limits) as host:
        pids = [host.pid(device) for device in RANKS]
        stream = None
        if phase == "decode":
            stream = await host.submit("m", "endless")
            await read_until(stream, TextDelta, 3)
        host.kill("cpu:1", signal.SIGSTOP)
        if stream is not None:
            assert (await drain(stream, 12)).code == "worker_unresponsive"
        await host.until_state("m", ModelState.POISONED, 12)
        poison = await record(host)
        assert poison.reason == "worker_unresponsive (rank 1 on cpu:1)"
        await until(lambda: all(gone(pid) for pid in pids))
        await host.load("m")
        assert host.registry.model("test/m").device_ids == RANKS
        assert (await host.ask("m")).text == "The quick brown fox"


FAULTS = [
    ("cpu:1", "worker.decode.step", {"error": "accelerator", "code": 700}, "device_fault", True),
    ("cpu", "worker.prefill.chunk", {"error": "runtime", "text": "zz"}, "device_fault", True),
    ("cpu", "worker.decode.step", {"error": "value", "text": "a shape"}, "internal_error", False),
    ("cpu:1", "worker.decode.step", {"error": "value", "text": "a shape"}, "internal_error", False),
    ("cpu:1", "worker.prefill.chunk", {"error": "value", "text": "a shape"}, "internal_error", False),
    ("cpu:1", "worker.decode.step", {"error": "oom"}, "insufficient_vram", False),
    ("cpu", "tp.agree", {"error": "value", "text": "late"}, "internal_error", False),
]


@pytest.mark.parametrize(("victim", "point", "how", "code", "poisons"), FAULTS)
async def test_a_fault_of_one_rank(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    how: dict[str, Any],
    code: str,
    poisons: bool,
    victim: str,
) -> None:
    """A host's error costs one request: the rank says so before the others wait for it. A device's costs the group."""
    control = arm(tmp_path / "c.json", monkeypatch)
    async with group(tmp_path, FOX, limits=PATIENT) as host:
        pids = [host.pid(device) for device in RANKS]
        assert (await host.ask("m")).text == "The quick brown fox"
        control.write_text(json.dumps([{"point": point, "device": victim, "action": "raise", **how}]))
        began = time.monotonic()
        assert (await host.ask("m")).code == code
        assert time.monotonic() - began < PATIENT.step_seconds / 2
        if poisons:
            await host.until_state("m", ModelState.POISONED)
            assert (await record(host)).rank == RANKS.index(victim)
            control.write_text("[]")
            await host.load("m")
        assert (await host.ask("m")).text == "The quick brown fox"
        assert ([host.pid(device) for device in RANKS] == pids) is not poisons


DIVERGENCES = [
    ({"point": "tp.agree", "action": "diverge"}, "tp_divergence", "tp_divergence"),
    ({"point": "worker.reply", "action": "wrong_value"}, "tp_divergence", "tp_divergence"),
    ({"point": "worker.reply", "action": "corrupt_stamp", "count": 9}, "protocol_error", "protocol_error"),
    ({"point": "worker.reply", "action": "wrong_job"}, "protocol_error", "protocol_error"),
    ({"point": "worker.reply", "action": "drop_reply", "start": 3}, "tp_divergence", "tp_divergence"),
]


@pytest.mark.parametrize(("entry", "code", "reason"), DIVERGENCES)
async def test_ranks_that_differ_end_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: dict[str, Any], code: str, reason: str
) -> None:
    control = arm(tmp_path / "c.json", monkeypatch)
    async with group(tmp_path, FOX, limits=PATIENT) as host:
        assert (await host.ask("m")).text == "The quick brown fox"
        control.write_text(json.dumps([{"device": "cpu:1", **entry}]))
        assert (await host.ask("m")).code == code
        await host.until_state("m", ModelState.POISONED)
        poison = await record(host)
        assert poison.reason.startswith(reason)
        assert poison.rank == 1
        control.write_text("[]")
        await host.load("m")
        assert (await host.ask("m")).text == "The quick brown fox"


async def test_a_rank_that_never_joins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuron.actors.group.group.JOIN_SECONDS", 1.0)
    arm(tmp_path / "c.json", monkeypatch, {"point": "tp.init", "device": "cpu:1", "action": "sleep", "seconds": 60})
    async with daemon(tmp_path, {"m": FOX}, load=False) as host:
        with anyio.fail_after(30), pytest.raises(TpInitFailed):
            await host.load("m", tensor_parallel=2)
        assert not [name for name in os.listdir(tempfile.gettempdir()) if name.startswith(f"{PREFIX}-{os.getpid()}-")]
        arm(tmp_path / "c.json", monkeypatch)
        await host.load("m", tensor_parallel=2)
        assert (await host.ask("m")).text == "The quick brown fox"


async def test_a_scripted_fault_fires_on_every_rank_and_is_one(tmp_path: Path) -> None:
    broken = turn("a", "b", "c", EOS, when="break", fault=fault("kill", 1))
    async with group(tmp_path, broken, FOX) as host:
        answer = await host.ask("m", "break")
        assert (answer.code, answer.text) == ("worker_died", "a")
        await host.load("m")
        assert (await host.ask("m", "break")).text == "abc"


async def test_nan_is_the_leaders_to_see(tmp_path: Path) -> None:
    broken = turn("a", "b", EOS, when="break", fault=fault("nan", 1))
    async with group(tmp_path, broken, FOX) as host:
        assert (await host.ask("m", "break")).code == "nan_logits"
        assert (await host.ask("m")).text == "The quick brown fox"


async def test_a_client_that_leaves_stops_all_ranks_at_one_step(tmp_path: Path) -> None:
    async with group(tmp_path, ENDLESS, FOX) as host:
        stream = await host.submit("m", "endless")
        await read_until(stream, TextDelta, 3)
        stream.cancel()
        await host.until_idle("m")
        assert (await host.ask("m")).text == "The quick brown fox"


async def test_what_shares_a_device_with_a_group(tmp_path: Path) -> None:
    """Another model on the leader's device keeps its process when the group's model goes, and dies with a group."""
    async with daemon(tmp_path, {"a": FOX}) as host:
        host.write("m", FOX)
        await host.load("m", tensor_parallel=2, devices=("cpu", "cpu:1"))
        leader, other = host.pid("cpu"), host.pid("cpu:1")
        assert (await host.ask("m")).text == (await host.ask("a")).text
        await host.registry.unload("test/m")
        assert host.pid("cpu") == leader
        assert gone(other)
        assert (await host.ask("a")).text == "The quick brown fox"
        await host.load("m", tensor_parallel=2, devices=("cpu", "cpu:1"))
        assert (await host.ask("m")).text == "The quick brown fox"
        host.kill("cpu:1")
        await host.until_state("m", ModelState.POISONED)
        await host.until_state("a", ModelState.POISONED)
        assert "group_ended" in str(host.registry.model("test/a").reason)
        assert "SIGKILL" in str(host.registry.model("test/m").reason)
        await host.load("a")
        await host.load("m")
        assert (await host.ask("m")).text == (await host.ask("a")).text == "The quick brown fox"


@pytest.mark.parametrize(
    ("point", "error", "victim"),
    [
        ("worker.prefix.save", "oom", "cpu:1"),
        ("worker.prefix.save", "value", "cpu"),
        ("worker.prefix.restore", "value", "cpu:1"),
    ],
)
async def test_a_prefix_that_one_rank_cannot_keep_or_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, error: str, victim: str
) -> None:
    """It costs the reuse, never the answer, and the ranks hold the same again."""
    control = arm(tmp_path / "c.json", monkeypatch)
    limits = msgspec.structs.replace(PATIENT, prefill_chunk_tokens=64)
    async with group(tmp_path, turn("said", EOS, when="right"), turn("wrong", EOS), limits=limits) as host:
        long, other = "word " * 60 + "right", "words " * 60 + "right"
        armed = json.dumps([{"point": point, "device": victim, "action": "raise", "error": error}])
        for text in (long, other, long, other, long):
            assert (await host.ask("m", text)).text == "said"
            control.write_text(armed)
        assert host.state("m") is ModelState.READY
        control.write_text("[]")
        cached = [(await host.ask("m", text)).finish.usage.cached_tokens for text in (other, long, other, long)]
        assert min(cached[2:]) > 100


async def test_a_model_that_comes_while_a_group_goes_keeps_its_process(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"m": FOX, "one": FOX, "late": FOX}, load=False) as host:
        await host.load("m", tensor_parallel=2, devices=RANKS)
        await host.load("one", devices=("cpu",))
        group = host.registry._devices.port(RANKS)
        call, dropping, go_on = group.call, anyio.Event(), anyio.Event()

        async def slow(build: Any, **options: Any) -> Any:
            dropping.set()
            await go_on.wait()
            return await call(build, **options)

        group.call = slow  # type: ignore[method-assign]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(host.registry.unload, "test/m")
            await dropping.wait()
            await host.load("late", devices=("cpu:1",))
            go_on.set()
        for name in ("late", "one"):
            assert (await host.ask(name)).text == "The quick brown fox"


async def test_groups_that_share_a_device_take_turns(tmp_path: Path) -> None:
    """All ranks see the jobs of all models in one order, so none waits for a peer that waits for another."""
    async with daemon(tmp_path, {}, load=False) as host:
        places = {"one": ("cpu", "cpu:1"), "two": ("cpu:1", "cpu:2"), "three": ("cpu:2", "cpu")}
        for name, devices in places.items():
            host.write(name, turn(*"0123456789" * 3, EOS))
            await host.load(name, tensor_parallel=2, devices=devices)
        said: list[str] = []

        async def ask(name: str) -> None:
            said.append((await host.ask(name)).text)

        async with anyio.create_task_group() as tasks:
            for name in (*places, *places):
                tasks.start_soon(ask, name)
        assert said == ["0123456789" * 3] * 6
        # The device of two groups goes: both end, each with the cause; the third lost a rank of its own to them.
        host.kill("cpu:1")
        for name in ("one", "two"):
            await host.until_state(name, ModelState.POISONED)
            await until(lambda name=name: "SIGKILL (rank" in str(host.registry.model(f"test/{name}").reason))  # type: ignore[misc]
        for name, devices in places.items():
            await host.load(name, tensor_parallel=2, devices=devices)
            assert (await host.ask(name)).text == "0123456789" * 3


async def test_a_busy_neighbour_makes_no_rank_late(tmp_path: Path) -> None:
    """The leader's process works for other models longer than a step may take; the other rank only waits for it."""
    limits = msgspec.structs.replace(FAST, step_seconds=1.5)
    slow = [turn("s", EOS, when="slow", delay_ms=1200), turn("q", EOS)]
    async with daemon(tmp_path, {"a": slow, "b": slow}, limits=limits) as host:
        host.write("m", FOX)
        await host.load("m", tensor_parallel=2, devices=RANKS)
        said = [(await host.ask(name)).text for name in ("a", "b", "m")]

        async def ask(name: str, text: str) -> None:
            said.append((await host.ask(name, text)).text)

        async with anyio.create_task_group() as tasks:
            for name in ("a", "b"):
                tasks.start_soon(ask, name, "slow")
            await anyio.sleep(0.3)
            tasks.start_soon(ask, "m", "hi")
        assert sorted(said) == ["The quick brown fox", "The quick brown fox", "q", "q", "s", "s"]
        assert host.state("m") is ModelState.READY


async def test_automatic_recovery_of_a_group(tmp_path: Path) -> None:
    recovery = RecoverySettings(mode=RecoveryMode.AUTO)
    async with group(tmp_path, FOX, recovery=recovery) as host:
        pids = {host.pid(device) for device in RANKS}
        host.kill("cpu:1")
        await until(lambda: host.state("m") is not ModelState.READY)
        await host.until_state("m", ModelState.READY, 20)
        assert not {host.pid(device) for device in RANKS} & pids
        assert (await host.ask("m")).text == "The quick brown fox"
        assert host.registry.model("test/m").device_ids == RANKS


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"tensor_parallel": 9}, "unsupported_device"),
        ({"tensor_parallel": 2, "devices": ("cpu",)}, "unsupported_device"),
        ({"tensor_parallel": 2, "devices": ("cpu", "cpu")}, "unsupported_device"),
    ],
)
async def test_too_few_devices(tmp_path: Path, fields: dict[str, Any], code: str) -> None:
    async with daemon(tmp_path, {"m": FOX}, load=False) as host:
        with pytest.raises(NeuronError) as caught:
            await host.load("m", **fields)
        assert caught.value.code == code
        assert all(info.pid is None for info in host.registry.devices())


async def test_a_resident_group_and_another_wish(tmp_path: Path) -> None:
    async with group(tmp_path, FOX) as host:
        assert (await host.load("m")).already
        assert (await host.load("m", tensor_parallel=2, devices=RANKS)).already
        for wish in ({"tensor_parallel": 4}, {"tensor_parallel": 1}, {"devices": ("cpu",)}):
            with pytest.raises(AlreadyLoaded):
                await host.load("m", **wish)


async def test_loads_at_one_time_on_shared_devices(tmp_path: Path) -> None:
    """Two groups meet in the same process while neither holds a model yet."""
    async with daemon(tmp_path, {}, load=False) as host:
        places = {"one": ("cpu", "cpu:1"), "two": ("cpu:1", "cpu:2"), "three": ("cpu", "cpu:1", "cpu:2")}
        async with anyio.create_task_group() as tasks:
            for name, devices in places.items():
                host.write(name, FOX)
                tasks.start_soon(functools.partial(host.load, name, tensor_parallel=len(devices), devices=devices))
        for name in places:
            assert (await host.ask(name)).text == "The quick brown fox"


async def test_requests_bring_a_group_and_idleness_takes_it_away(tmp_path: Path) -> None:
    models = (ModelSettings(id="scripted:test/m", tensor_parallel=2, at_start=False),)
    residency = ResidencySettings(load_on_request=True, keep_alive_seconds=0.2)
    async with daemon(tmp_path, {"m": FOX}, load=False, models=models, residency=residency) as host:
        for _ in range(2):
            assert (await host.ask("m")).text == "The quick brown fox"
            assert host.registry.model("test/m").device_ids == RANKS
            pids = [host.pid(device) for device in RANKS]
            await until(lambda: not host.registry.models())
            assert all(gone(pid) for pid in pids)
