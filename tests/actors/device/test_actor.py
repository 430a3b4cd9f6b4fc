"""The device actor with real processes (level 2): life, jobs, cached facts. Faults have tests/fault/."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import pytest
import structlog

from neuron.actors.daemon import PoisonRecord
from neuron.actors.device import actor as actor_module
from neuron.actors.device import jobs
from neuron.actors.device.actor import DeviceActor
from neuron.actors.device.host import HostMemory
from neuron.actors.device.jobs import ArchHandle
from neuron.actors.device.process import Child, ExitLike
from neuron.actors.errors import DeviceUnavailable, InsufficientVram, InvalidConfig
from neuron.runtime import process as runtime_process
from neuron.runtime.errors import InternalError, ProtocolError, ShuttingDown, WorkerDied, WorkerUnresponsive
from neuron.runtime.logs import redirected
from tests.harness.invariants import gone
from tests.harness.level2 import FAST, device
from tests.harness.scripts import EOS, fault, turn, write_script

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_left")]


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return write_script(tmp_path, "plain", turn("a", "b", "c", repeat=True))


async def test_a_whole_life(plain: Path) -> None:
    async with device() as held:
        assert held.actor.info().state == "idle"
        assert held.actor.info().vram_total_mb > 0
        model = await held.model(plain)
        pid = held.pid
        assert held.actor.info().state == "ready"
        assert await model.generate(b"hi" * 700, 4) == [97, 98, 99, 97]
        assert (await held.actor.ensure_started()).pid == pid
        await model.drop()
        assert held.actor.starts == 1
    assert gone(pid)
    assert held.deaths == []


async def test_a_process_for_scripts_loads_no_tensor_library(plain: Path) -> None:
    async with device() as held:
        model = await held.model(plain)
        await model.generate(b"hi", 2)
        maps = await anyio.Path(f"/proc/{held.pid}/maps").read_text()
        assert not re.search(r"libtorch|libcuda|llvmlite", maps)
        await model.drop()


async def test_the_segment_has_no_name_once_attached(plain: Path) -> None:
    async with device() as held:
        model = await held.model(plain)
        mine = f"neuron-{os.getpid()}-"
        assert [name for name in os.listdir("/dev/shm") if name.startswith(mine)] == []
        assert await model.generate(b"hi", 1) == [97]
        await model.drop()


async def test_jobs_need_a_running_process() -> None:
    async with device() as held:
        with pytest.raises(WorkerDied):
            held.actor.post(jobs.QueryVram)
        with pytest.raises(WorkerDied):
            await held.actor.call(jobs.QueryVram)


async def test_starting_at_once_from_many_callers_starts_one(plain: Path) -> None:
    async with device() as held:
        pids: list[int] = []

        async def start() -> None:
            pids.append((await held.actor.ensure_started()).pid)

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(start)
        assert len(set(pids)) == 1
        assert held.actor.starts == 1


async def test_jobs_may_be_queued_ahead(plain: Path) -> None:
    async with device() as held:
        model = await held.model(plain)
        await model.clear()
        prompt = [model.post([104] * 100, 100 * chunk, None) for chunk in range(5)]
        last = model.post([105], 500)
        assert model.token(await last.reply()) == 97
        assert all(pending.done for pending in prompt)
        await model.drop()


async def test_a_cancelled_caller_leaves_its_answer_to_nobody(tmp_path: Path) -> None:
    """Cancelled between sending a job and reading its reply: the next caller gets its own."""
    slow = write_script(tmp_path, "slow", turn("a", "b", delay_ms=300))
    async with device() as held:
        model = await held.model(slow)
        await model.clear()
        with anyio.move_on_after(0.05) as scope:
            await model.post([104], 0).reply()
        assert scope.cancelled_caught
        assert await model.generate(b"x", 1) == [97]
        assert held.actor.counters.late == 1
        assert held.deaths == []
        await model.drop()


async def test_load_errors_are_typed_and_poison_nothing(tmp_path: Path, plain: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    async with device() as held:
        with pytest.raises(InvalidConfig) as caught:
            await held.model(bad)
        assert str(tmp_path) not in caught.value.message
        with pytest.raises(InternalError):
            await held.actor.call(lambda job: jobs.GroupSanity(job, 7))
        model = await held.model(plain)
        assert await model.generate(b"hi", 1) == [97]
        assert held.deaths == []
        await model.drop()


async def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    control = tmp_path / "control.json"
    text = "CUDA error: no CUDA-capable device is detected"
    control.write_text(json.dumps([{"point": "worker.start", "action": "raise", "text": text}]))
    async with device(failpoints=control) as held:
        for _ in range(4):  # It is no crash loop: the reason stays visible.
            with pytest.raises(DeviceUnavailable):
                await held.actor.ensure_started()
        assert held.deaths == []


async def test_progress_reaches_the_caller(plain: Path) -> None:
    async with device() as held:
        await held.actor.ensure_started()
        seen: list[jobs.Progress] = []
        await held.actor.call(lambda job: jobs.LoadScripted(job, ArchHandle(900), str(plain)), on_progress=seen.append)
        assert seen[-1].fraction == 1.0


async def test_figures_are_cached(plain: Path) -> None:
    async with device() as held:
        model = await held.model(plain)
        await held.actor.call(jobs.QueryVram)
        assert held.actor.info().vram_used_mb > 0
        assert held.actor.info().last_seen_s is not None
        await model.drop()


async def test_lines_of_a_process_name_no_request(plain: Path, tmp_path: Path) -> None:
    """Neither that it died nor what it said last is the business of the request that had it started."""
    path = tmp_path / "log"
    with path.open("wb") as file, redirected(file.fileno()):
        async with device() as held:
            with structlog.contextvars.bound_contextvars(req_id="load-1"):
                await held.model(plain)
            held.signal(signal.SIGABRT)
            await held.death()
    events = [json.loads(line) for line in path.read_text().splitlines()]
    ends = [event for event in events if event["event"] in ("device process died", "worker stderr")]
    assert {event["event"] for event in ends} == {"device process died", "worker stderr"}
    assert [event for event in ends if "req_id" in event] == []


async def test_what_an_ended_process_held_is_not_counted(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with device() as held:
        await held.model(plain)
        await held.actor.call(jobs.QueryVram)
        await held.actor.release()
        monkeypatch.setattr(actor_module, "host_memory", lambda: HostMemory(total_mb=1000, free_mb=600))
        info = held.actor.info()
        assert (info.vram_total_mb, info.vram_used_mb, info.vram_free_mb) == (1000, 400, 600)


async def test_a_released_process_is_followed_by_a_fresh_one(plain: Path) -> None:
    async with device() as held:
        first = (await held.actor.ensure_started()).pid
        await held.actor.release()
        second = (await held.actor.ensure_started()).pid
        assert first != second
        assert gone(first)
        assert held.deaths == []
        model = await held.model(plain)
        assert await model.generate(b"hi", 1) == [97]
        await model.drop()


async def test_stop_is_bounded_when_the_process_is_stuck(tmp_path: Path) -> None:
    stuck = write_script(tmp_path, "stuck", turn("a", fault=fault("hang")))
    async with device(limits=msgspec.structs.replace(FAST, step_seconds=60.0)) as held:
        model = await held.model(stuck)
        pid = held.pid
        pending = model.post([104], 0)
        await held.actor.stop(0.3)
        assert gone(pid)
        with pytest.raises(ShuttingDown):
            await pending.reply()
        with pytest.raises(ShuttingDown):
            await held.actor.ensure_started()
        assert held.deaths == []
        model.slots.close()


async def test_an_orderly_stop_ends_the_process_by_itself(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    kill = runtime_process.ChildProcess.kill

    def note(self: runtime_process.ChildProcess) -> None:
        if self.status is None:
            killed.append(self.pid)
        kill(self)

    monkeypatch.setattr(runtime_process.ChildProcess, "kill", note)
    async with device() as held:
        await held.model(plain)
        await held.actor.stop(10)
    assert killed == []


async def test_kill_on_behalf_of_a_group(plain: Path) -> None:
    async with device() as held:
        model = await held.model(plain)
        held.actor.kill("rank 1 failed", lambda: WorkerUnresponsive("another rank failed"))
        with pytest.raises(WorkerUnresponsive):
            await model.clear()
        assert (await held.death()).reason == "rank 1 failed"
        model.slots.close()


def _fail(record: PoisonRecord) -> None:
    raise RuntimeError(record.reason)


async def test_a_callback_that_fails_keeps_nobody_from_knowing(plain: Path) -> None:
    async with anyio.create_task_group() as tasks:
        actor = DeviceActor("cpu", FAST, tasks)
        actor.on_death(_fail)
        second = anyio.Event()
        actor.on_death(lambda record: second.set())
        ready = await actor.ensure_started()
        os.kill(ready.pid, signal.SIGKILL)
        with anyio.fail_after(10):
            await second.wait()
        await actor.stop()


async def test_eos_ends_a_script(tmp_path: Path) -> None:
    async with device() as held:
        model = await held.model(write_script(tmp_path, "e", turn("a", EOS), special_tokens=["<|im_end|>"]))
        assert await model.generate(b"hi", 2) == [97, 256]
        await model.drop()


async def test_release_ends_the_process_and_a_load_starts_a_fresh_one(plain: Path) -> None:
    async with device() as held:
        model = await held.model(plain)
        first = held.pid
        model.slots.close()
        await held.actor.release(5.0)
        assert gone(first)
        assert held.actor.info().state == "idle"
        model = await held.model(plain)
        assert await model.generate(b"hi", 1) == [97]
        assert held.deaths == []
        await model.drop()


async def test_repeated_shortage_of_memory_gives_advice(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[str] = []
    monkeypatch.setattr(actor_module, "_log", _Recorder(warned))
    text = "CUDA out of memory. Tried to allocate 2.00 GiB."
    control = tmp_path / "control.json"
    control.write_text(
        json.dumps([{"point": "worker.prefill.chunk", "action": "raise", "text": text, "start": 1, "count": 3}])
    )
    async with device(failpoints=control) as held:
        model = await held.model(plain)
        for _ in range(3):
            with pytest.raises(InsufficientVram):
                await model.generate(b"hi", 1)
        assert warned == ["device memory ran out again and again"]
        assert await model.generate(b"hi", 1) == [97]
        await model.drop()


class _Recorder:
    """Stands for the logger; keeps warnings."""

    def __init__(self, warned: list[str]) -> None:
        self._warned = warned

    def warning(self, event: str, **keys: object) -> None:
        self._warned.append(event)

    def info(self, event: str, **keys: object) -> None:
        """Not kept."""

    def error(self, event: str, **keys: object) -> None:
        """Not kept."""


def test_the_daemons_side_imports_no_tensor_library() -> None:
    code = (
        "import sys, neuron.actors.device.actor; "
        "sys.exit(any(name.split('.')[0] in ('torch', 'llvmlite') or name.startswith('numba.cuda') "
        "for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


async def test_a_reply_that_cannot_be_handled_ends_the_process_and_not_the_daemon(plain: Path) -> None:
    def defect(*_: object) -> None:
        raise KeyError("a defect of ours")

    async with device() as held:
        model = await held.model(plain)
        process = held.actor._process
        assert process is not None
        process._on_reply = defect
        waiting = [model.post([104], position, None) for position in range(2)]
        await waiting[0].reply()
        with pytest.raises(ProtocolError):
            await waiting[1].reply()
        assert (await held.death()).reason == "protocol_error"
        model.slots.close()
        await (await held.model(plain)).drop()


class Immortal:
    """A process that the kernel cannot end: its driver holds it."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.released = anyio.Event()

    @property
    def pid(self) -> int:
        return self.child.pid

    async def wait(self) -> ExitLike:
        await self.released.wait()
        return await self.child.wait()

    def kill(self) -> None:
        pass


async def test_nobody_waits_for_a_process_that_cannot_be_ended(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_module, "REAP_SECONDS", 0.05)
    monkeypatch.setattr(actor_module, "STOP_SECONDS", 0.05)
    stuck: list[Immortal] = []

    async def spawn(device_id: str, link_fd: int) -> Child:
        child = await actor_module.spawn_worker(device_id, link_fd)
        if stuck:
            return child
        stuck.append(Immortal(child))
        return stuck[0]

    async with anyio.create_task_group() as tasks:
        actor = DeviceActor("cpu", FAST, tasks, spawn=spawn)
        pid = (await actor.ensure_started()).pid
        with anyio.fail_after(10):
            await actor.release(0.1)
            assert actor.info().pid == pid
            with pytest.raises(DeviceUnavailable):
                await actor.ensure_started()
            stuck[0].released.set()
            while actor.info().pid is not None:
                await anyio.lowlevel.checkpoint()
            assert (await actor.ensure_started()).pid != pid
            await actor.stop()
