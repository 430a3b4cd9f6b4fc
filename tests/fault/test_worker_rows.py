"""Rows 1-22, 32 and 38 of the fault matrix at the device actor: real processes, real signals, nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

from neuron.actors.device import jobs
from neuron.actors.device.jobs import Sequence
from neuron.actors.errors import DeviceFault, InsufficientVram, NanLogits
from neuron.runtime import shm
from neuron.runtime.errors import (
    InternalError,
    NeuronError,
    ProtocolError,
    RestartLimit,
    WorkerDied,
    WorkerUnresponsive,
)
from tests.harness.invariants import gone
from tests.harness.level2 import FAST, Device, device
from tests.harness.scripts import fault, turn, write_script

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_left")]

KILL_BOUND_SECONDS = 5.0
"""The daemon's aim is 1 s; a shared machine gets room. That nothing waits for a deadline is what this proves."""


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return write_script(tmp_path, "plain", turn("a", "b", "c", repeat=True))


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return write_script(tmp_path, "other", turn("x", "y", repeat=True))


def _arm(path: Path, *entries: dict[str, object]) -> Path:
    path.write_text(json.dumps(entries))
    return path


@asynccontextmanager
async def _beside(path: Path) -> AsyncIterator[None]:
    """A second device with a model, which must not notice anything: asked at the end of the block."""
    async with device("cpu:1") as second:
        model = await second.model(path)
        assert await model.generate(b"hi", 2) == [ord("x"), ord("y")]
        pid = second.pid
        yield
        assert await model.generate(b"hi", 2) == [ord("x"), ord("y")]
        assert second.pid == pid
        assert second.deaths == []
        await model.drop()


async def _cured(held: Device, path: Path, old_pid: int) -> None:
    """Loading again gives a fresh process that answers."""
    model = await held.model(path)
    assert held.pid != old_pid
    assert gone(old_pid)
    assert await model.generate(b"hi", 3) == [97, 98, 99]
    await model.drop()


# -- rows 1-6, 9: death by signal --------------------------------------------------------------------


async def test_row_1_killed_in_mid_load_then_loads_again(tmp_path: Path, other: Path) -> None:
    path = write_script(tmp_path, "killer", turn("a", "b", "c", repeat=True, fault=fault("kill", at=2, phase="load")))
    async with _beside(other), device() as held:
        pid = (await held.actor.ensure_started()).pid
        with anyio.fail_after(KILL_BOUND_SECONDS), pytest.raises(WorkerDied) as caught:
            await held.model(path)
        assert caught.value.extra["signal"] == "SIGKILL"
        record = await held.death()
        assert (record.reason, record.phase) == ("worker_exited: signal SIGKILL", "load")
        await _cured(held, path, pid)  # `times: 1` outlives the process.


async def test_row_2_killed_in_the_second_chunk(tmp_path: Path, other: Path) -> None:
    path = write_script(
        tmp_path, "killer", turn("a", "b", "c", repeat=True, fault=fault("kill", at=1, phase="prefill"))
    )
    async with _beside(other), device() as held:
        model = await held.model(path)
        pid = held.pid
        with anyio.fail_after(KILL_BOUND_SECONDS), pytest.raises(WorkerDied):
            await model.generate(b"x" * 300, 1, chunk=100)
        record = await held.death()
        assert (record.phase, record.exit_status) == ("prefill", "signal SIGKILL")
        with pytest.raises(WorkerDied):  # Refused without any process.
            model.post([1], 0)
        model.slots.close()
        await _cured(held, path, pid)


async def test_row_3_killed_in_decode_after_three_tokens(tmp_path: Path, other: Path) -> None:
    path = write_script(tmp_path, "killer", turn("a", "b", "c", "d", fault=fault("kill", at=3)))
    seen: list[int] = []
    async with _beside(other), device() as held:
        model = await held.model(path)
        with anyio.fail_after(KILL_BOUND_SECONDS), pytest.raises(WorkerDied):
            await model.generate(b"hi", 4, on_token=seen.append)
        assert seen == [1, 2, 3]
        assert (await held.death()).phase == "decode"
        model.slots.close()


async def test_row_5_killed_while_idle_is_seen_before_any_request(plain: Path, other: Path) -> None:
    async with _beside(other), device() as held:
        model = await held.model(plain)
        pid = held.pid
        held.signal(signal.SIGKILL)
        record = await held.death(within_s=KILL_BOUND_SECONDS)
        assert (record.reason, record.phase) == ("worker_exited: signal SIGKILL", "idle")
        assert held.actor.info().state == "dead"
        assert held.actor.info().pid is None
        with pytest.raises(WorkerDied):
            await model.clear()
        model.slots.close()
        await _cured(held, plain, pid)


async def test_row_6_killed_in_unload(tmp_path: Path, plain: Path) -> None:
    control = _arm(tmp_path / "c.json", {"point": "worker.drop", "action": "signal", "signal": signal.SIGKILL})
    async with device(failpoints=control) as held:
        model = await held.model(plain)
        with pytest.raises(WorkerDied):
            await model.drop()
        assert (await held.death()).phase == "unload"
        model.slots.close()


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGILL", "SIGBUS"])
async def test_row_9_death_in_native_code_names_its_signal(name: str, tmp_path: Path, plain: Path) -> None:
    number = signal.Signals[name]
    control = _arm(tmp_path / "c.json", {"point": "worker.decode.step", "action": "signal", "signal": number})
    async with device(failpoints=control) as held:
        model = await held.model(plain)
        with pytest.raises(WorkerDied) as caught:
            await model.generate(b"h", 1)
        assert caught.value.extra["signal"] == name
        reason = (await held.death()).reason
        assert reason == f"{'io_fault' if name == 'SIGBUS' else 'worker_exited'}: signal {name}"
        model.slots.close()


async def test_an_exit_is_a_death_too(tmp_path: Path) -> None:
    path = write_script(tmp_path, "leaver", turn("a", fault=fault("exit")))
    async with device() as held:
        model = await held.model(path)
        with pytest.raises(WorkerDied):
            await model.generate(b"hi", 1)
        assert (await held.death()).reason == "worker_exited: exit status 3"
        model.slots.close()


async def test_every_waiting_caller_gets_the_error(tmp_path: Path) -> None:
    path = write_script(tmp_path, "slow", turn("a", delay_ms=60_000))
    async with device() as held:
        model = await held.model(path)
        waiting = [model.post([104], 0), *(model.post([104], 1) for _ in range(9))]
        held.signal(signal.SIGKILL)
        with anyio.fail_after(KILL_BOUND_SECONDS):
            for pending in waiting:
                with pytest.raises(WorkerDied):
                    await pending.reply()
        assert len(held.deaths) <= 1
        await held.death()
        model.slots.close()


# -- rows 7, 8, 22: hangs ----------------------------------------------------------------------------


@pytest.mark.parametrize("stopped", [True, False])
async def test_row_7_a_hang_in_decode_ends_at_the_step_deadline(stopped: bool, tmp_path: Path, other: Path) -> None:
    how = {"delay_ms": 60_000} if stopped else {"fault": fault("hang")}
    path = write_script(tmp_path, "stuck", turn("a", when="first"), turn("a", **how))
    limits = msgspec.structs.replace(FAST, step_seconds=1.0)
    async with _beside(other), device(limits=limits) as held:
        model = await held.model(path)
        await model.generate(b"first", 1)
        pid = held.pid
        await model.clear()
        pending = model.post([104], 0)
        if stopped:
            held.signal(signal.SIGSTOP)
        with anyio.fail_after(10), pytest.raises(WorkerUnresponsive):
            await pending.reply()
        record = await held.death()
        assert (record.reason, record.exit_status) == ("worker_unresponsive", "signal SIGKILL")
        assert gone(pid)
        model.slots.close()


async def test_the_first_step_after_a_load_has_the_limit_of_a_load(tmp_path: Path) -> None:
    """Compilers and libraries start up in it. The second slow step is the negative control."""
    path = write_script(tmp_path, "slow", turn("a", "b", delay_ms=1500))
    limits = msgspec.structs.replace(FAST, step_seconds=0.5, load_stall_seconds=30.0)
    async with device(limits=limits) as held:
        model = await held.model(path)
        first = await model.post([104], 0).reply()
        assert model.token(first) == 97
        with pytest.raises(WorkerUnresponsive):
            await model.post([97], 1).reply()
        await held.death()
        model.slots.close()


async def test_a_load_without_progress_is_given_up(tmp_path: Path, plain: Path) -> None:
    control = _arm(tmp_path / "c.json", {"point": "worker.load.progress", "action": "sleep", "seconds": 60, "start": 2})
    async with device(limits=msgspec.structs.replace(FAST, load_stall_seconds=1.0), failpoints=control) as held:
        with pytest.raises(WorkerUnresponsive):
            await held.model(plain)
        assert (await held.death()).phase == "load"


async def test_a_slow_load_with_progress_is_not(tmp_path: Path, plain: Path) -> None:
    control = _arm(
        tmp_path / "c.json", {"point": "worker.load.progress", "action": "sleep", "seconds": 0.6, "count": 4}
    )
    async with device(limits=msgspec.structs.replace(FAST, load_stall_seconds=1.8), failpoints=control) as held:
        model = await held.model(plain)
        assert held.deaths == []
        await model.drop()


async def test_row_8_stopped_while_idle(plain: Path, other: Path) -> None:
    async with _beside(other), device(limits=msgspec.structs.replace(FAST, step_seconds=60.0)) as held:
        model = await held.model(plain)
        held.signal(signal.SIGSTOP)
        record = await held.death(within_s=8.0)
        assert (record.reason, record.phase) == ("worker_unresponsive", "idle")
        model.slots.close()


async def test_row_8_a_long_step_keeps_beating(tmp_path: Path) -> None:
    """No false alarm: longer than the silence that would end an idle process."""
    path = write_script(tmp_path, "long", turn("a", delay_ms=3500))
    async with device(limits=msgspec.structs.replace(FAST, step_seconds=30.0)) as held:
        model = await held.model(path)
        assert await model.generate(b"hi", 1) == [97]
        assert held.deaths == []
        await model.drop()


async def test_row_22_a_process_that_does_not_read_never_blocks_the_loop(plain: Path) -> None:
    async with device(limits=msgspec.structs.replace(FAST, step_seconds=1.5)) as held:
        model = await held.model(plain)
        await model.generate(b"hi", 1)
        await model.clear()
        held.signal(signal.SIGSTOP)
        data = b"\0" * (8 << 20)
        posted = [
            held.actor.post(lambda job: jobs.ForwardLogits(job, model.handle, Sequence(0), data, 0, None, 1))
            for _ in range(4)
        ]
        turns = 0
        with anyio.fail_after(15):
            while not held.deaths:
                turns += 1
                await anyio.sleep(0.05)
        assert turns > 5
        for pending in posted:
            with pytest.raises(WorkerUnresponsive):
                await pending.reply()
        model.slots.close()


# -- rows 10-17: faults that are raised --------------------------------------------------------------


async def test_row_10_a_device_fault_ends_the_process(tmp_path: Path, other: Path) -> None:
    """One code here; each code in each phase at level 1, in tests/actors/device/test_loop.py."""
    text = "CUDA error: an illegal memory access was encountered"
    path = write_script(tmp_path, "faulty", turn("a", "b", "c", repeat=True, fault=fault("device", at=1, text=text)))
    async with _beside(other), device() as held:
        model = await held.model(path)
        pid = held.pid
        with pytest.raises(DeviceFault) as caught:
            await model.generate(b"hi", 3)
        assert text not in caught.value.message
        record = await held.death()
        assert (record.code, record.phase) == (700, "decode")
        assert record.reason == "illegal_address: CUDA error: an illegal memory access was encountered"
        model.slots.close()
        await _cured(held, path, pid)


async def test_rows_11_and_17_recoverable_faults_leave_the_process(tmp_path: Path) -> None:
    path = write_script(
        tmp_path,
        "mild",
        turn("a", "b", "c", when="oom", fault=fault("oom", phase="prefill")),
        turn("a", "b", "c", when="nan", fault=fault("nan", at=1)),
        turn("a", "b", "c", when="host", fault=fault("host", at=2)),
    )
    async with device() as held:
        model = await held.model(path)
        pid = held.pid
        expected: list[tuple[bytes, type[NeuronError]]] = [
            (b"oom", InsufficientVram),
            (b"nan", NanLogits),
            (b"host", InternalError),
        ]
        for prompt, error in expected:
            with pytest.raises(error):
                await model.generate(prompt, 3)
            assert await model.generate(prompt, 3) == [97, 98, 99]
        assert held.pid == pid
        assert held.deaths == []
        await model.drop()


async def test_row_12_out_of_memory_and_a_bad_probe(tmp_path: Path) -> None:
    path = write_script(tmp_path, "oom", turn("a", fault=fault("oom")))
    control = _arm(tmp_path / "c.json", {"point": "worker.probe", "action": "raise", "text": "zz"})
    async with device(failpoints=control) as held:
        model = await held.model(path)
        with pytest.raises(DeviceFault):
            await model.generate(b"hi", 1)
        assert (await held.death()).reason.startswith("probe_failed")
        model.slots.close()


async def test_row_13_out_of_memory_at_load(tmp_path: Path) -> None:
    path = write_script(tmp_path, "oom", turn("a", "b", "c", repeat=True, fault=fault("oom", phase="load")))
    async with device() as held:
        with pytest.raises(InsufficientVram):
            await held.model(path)
        model = await held.model(path)
        assert await model.generate(b"hi", 1) == [97]
        assert held.deaths == []
        await model.drop()


async def test_row_16_an_unknown_text_is_fatal(tmp_path: Path, plain: Path) -> None:
    control = _arm(tmp_path / "c.json", {"point": "worker.decode.step", "action": "raise", "text": "zz /secret"})
    async with device(failpoints=control) as held:
        model = await held.model(plain)
        with pytest.raises(DeviceFault):
            await model.generate(b"h", 1)
        record = await held.death()
        assert record.reason == "unclassified: zz ..."
        model.slots.close()


# -- rows 20, 21: the link ---------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["corrupt_stamp", "wrong_job", "garbage"])
async def test_row_21_frames_that_cannot_be_trusted_end_the_process(action: str, tmp_path: Path, plain: Path) -> None:
    control = _arm(tmp_path / "c.json")
    async with device(failpoints=control) as held:
        model = await held.model(plain)
        await model.clear()
        _arm(control, {"point": "worker.reply", "action": action})
        with pytest.raises(ProtocolError):
            await model.post([104], 0).reply()
        assert (await held.death()).reason == "protocol_error"
        model.slots.close()


async def test_row_21_a_second_answer_is_dropped_and_counted(tmp_path: Path, plain: Path) -> None:
    control = _arm(tmp_path / "c.json")
    async with device(failpoints=control) as held:
        model = await held.model(plain)
        _arm(control, {"point": "worker.reply", "action": "duplicate_reply", "count": 5})
        assert await model.generate(b"hi", 4) == [97, 98, 99, 97]
        await model.clear()
        assert held.actor.counters.stale >= 4
        assert held.deaths == []
        await model.drop()


async def test_a_lost_answer_ends_at_the_deadline(tmp_path: Path, plain: Path) -> None:
    control = _arm(tmp_path / "c.json")
    async with device(limits=msgspec.structs.replace(FAST, step_seconds=1.0), failpoints=control) as held:
        model = await held.model(plain)
        await model.generate(b"hi", 1)
        _arm(control, {"point": "worker.reply", "action": "drop_reply"})
        with pytest.raises(WorkerUnresponsive):
            await model.clear()
        await held.death()
        model.slots.close()


# -- rows 31, 32, 38 -------------------------------------------------------------------------------------


async def test_row_31_the_daemons_own_pause_is_nobodys_fault(tmp_path: Path) -> None:
    path = write_script(tmp_path, "s", turn("a", "b", delay_ms=400))
    async with device(limits=msgspec.structs.replace(FAST, step_seconds=1.0)) as held:
        model = await held.model(path)
        await model.generate(b"hi", 1)
        await model.clear()
        pending = model.post([104], 0)
        time.sleep(2.6)  # noqa: ASYNC251 - the whole loop stands still, as under SIGSTOP
        assert model.token(await pending.reply()) == 97
        await anyio.sleep(0.6)
        assert held.deaths == []
        await model.drop()


async def test_row_32_a_crash_loop_is_refused_for_a_while(tmp_path: Path) -> None:
    path = write_script(tmp_path, "loop", turn("a", fault=fault("kill", phase="load", times=99)))
    async with device() as held:
        for count in range(3):
            with pytest.raises(WorkerDied):
                await held.model(path)
            await held.death(count + 1)
        with pytest.raises(RestartLimit) as caught:
            await held.model(path)
        assert 0 < (caught.value.retry_after or 0) <= 60
        assert held.actor.starts == 3


async def test_a_completed_load_ends_a_crash_loop(tmp_path: Path, plain: Path) -> None:
    async with device() as held:
        for count in range(5):
            model = await held.model(plain)
            held.signal(signal.SIGKILL)
            await held.death(count + 1)
            model.slots.close()


async def test_row_38_names_left_by_a_dead_owner_hinder_nobody(plain: Path) -> None:
    left = Path(shm.DIRECTORY) / f"{shm.PREFIX}-{2**22 + 1}-{'0' * 24}"
    left.write_bytes(b"x")
    try:
        async with device() as held:
            model = await held.model(plain)
            assert await model.generate(b"hi", 1) == [97]
            await model.drop()
    finally:
        left.unlink(missing_ok=True)


# -- row 30: the daemon dies -------------------------------------------------------------------------


@pytest.mark.parametrize("busy", [False, True])
async def test_row_30_no_process_outlives_the_daemon(busy: bool, tmp_path: Path) -> None:
    """A child stands for the daemon: it starts a device process, maybe in the middle of a step, and is killed."""
    how = {"delay_ms": 120_000} if busy else {}
    path = write_script(tmp_path, "s", turn("a", **how))
    read_fd, write_fd = os.pipe()
    program = (
        "import os, sys, anyio\n"
        "from pathlib import Path\n"
        "from tests.harness.level2 import device\n"
        "async def main():\n"
        "    async with device() as held:\n"
        "        model = await held.model(Path(sys.argv[1]))\n"
        "        model.post([104], 0)\n"
        "        await anyio.sleep(0.3)\n"
        "        os.write(int(sys.argv[2]), str(held.pid).encode())\n"
        "        await anyio.sleep(600)\n"
        "anyio.run(main)\n"
    )
    daemon = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", program, str(path), str(write_fd)],
        pass_fds=(write_fd,),
        stderr=subprocess.DEVNULL,
    )
    os.close(write_fd)
    try:
        worker = int(await anyio.to_thread.run_sync(os.read, read_fd, 32))
        daemon.kill()
        daemon.wait()
        with anyio.fail_after(5):
            while not gone(worker):  # noqa: ASYNC110
                await anyio.sleep(0.02)
    finally:
        daemon.kill()
        daemon.wait()
        os.close(read_fd)
