"""Rows 1-9 and 22 of the fault matrix at the device actor: real processes, real signals, nothing left behind."""

import signal
from pathlib import Path

import anyio
import msgspec
import pytest

from neuron.actors.device import jobs
from neuron.actors.device.jobs import Sequence
from neuron.runtime.errors import (
    WorkerDied,
    WorkerUnresponsive,
)
from tests.fault.device_rows import arm, beside, cured
from tests.harness.invariants import gone
from tests.harness.level2 import FAST, device
from tests.harness.scripts import fault, turn, write_script

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_left")]

KILL_BOUND_SECONDS = 5.0
"""The daemon's aim is 1 s; a shared machine gets room. That nothing waits for a deadline is what this proves."""


# -- rows 1-6, 9: death by signal --------------------------------------------------------------------


async def test_row_1_killed_in_mid_load_then_loads_again(tmp_path: Path, other: Path) -> None:
    path = write_script(tmp_path, "killer", turn("a", "b", "c", repeat=True, fault=fault("kill", at=2, phase="load")))
    async with beside(other), device() as held:
        pid = (await held.actor.ensure_started()).pid
        with anyio.fail_after(KILL_BOUND_SECONDS), pytest.raises(WorkerDied) as caught:
            await held.model(path)
        assert caught.value.extra["signal"] == "SIGKILL"
        record = await held.death()
        assert (record.reason, record.phase) == ("worker_exited: signal SIGKILL", "load")
        await cured(held, path, pid)  # `times: 1` outlives the process.


async def test_row_2_killed_in_the_second_chunk(tmp_path: Path, other: Path) -> None:
    path = write_script(
        tmp_path, "killer", turn("a", "b", "c", repeat=True, fault=fault("kill", at=1, phase="prefill"))
    )
    async with beside(other), device() as held:
        model = await held.model(path)
        pid = held.pid
        with anyio.fail_after(KILL_BOUND_SECONDS), pytest.raises(WorkerDied):
            await model.generate(b"x" * 300, 1, chunk=100)
        record = await held.death()
        assert (record.phase, record.exit_status) == ("prefill", "signal SIGKILL")
        with pytest.raises(WorkerDied):  # Refused without any process.
            model.post([1], 0)
        model.slots.close()
        await cured(held, path, pid)


async def test_row_3_killed_in_decode_after_three_tokens(tmp_path: Path, other: Path) -> None:
    path = write_script(tmp_path, "killer", turn("a", "b", "c", "d", fault=fault("kill", at=3)))
    seen: list[int] = []
    async with beside(other), device() as held:
        model = await held.model(path)
        with anyio.fail_after(KILL_BOUND_SECONDS), pytest.raises(WorkerDied):
            await model.generate(b"hi", 4, on_token=seen.append)
        assert seen == [1, 2, 3]
        assert (await held.death()).phase == "decode"
        model.slots.close()


async def test_row_5_killed_while_idle_is_seen_before_any_request(plain: Path, other: Path) -> None:
    async with beside(other), device() as held:
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
        await cured(held, plain, pid)


async def test_row_6_killed_in_unload(tmp_path: Path, plain: Path) -> None:
    control = arm(tmp_path / "c.json", {"point": "worker.drop", "action": "signal", "signal": signal.SIGKILL})
    async with device(failpoints=control) as held:
        model = await held.model(plain)
        with pytest.raises(WorkerDied):
            await model.drop()
        assert (await held.death()).phase == "unload"
        model.slots.close()


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGILL", "SIGBUS"])
async def test_row_9_death_in_native_code_names_its_signal(name: str, tmp_path: Path, plain: Path) -> None:
    number = signal.Signals[name]
    control = arm(tmp_path / "c.json", {"point": "worker.decode.step", "action": "signal", "signal": number})
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
    async with beside(other), device(limits=limits) as held:
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
    control = arm(tmp_path / "c.json", {"point": "worker.load.progress", "action": "sleep", "seconds": 60, "start": 2})
    async with device(limits=msgspec.structs.replace(FAST, load_stall_seconds=1.0), failpoints=control) as held:
        with pytest.raises(WorkerUnresponsive):
            await held.model(plain)
        assert (await held.death()).phase == "load"


async def test_a_slow_load_with_progress_is_not(tmp_path: Path, plain: Path) -> None:
    control = arm(tmp_path / "c.json", {"point": "worker.load.progress", "action": "sleep", "seconds": 0.6, "count": 4})
    async with device(limits=msgspec.structs.replace(FAST, load_stall_seconds=1.8), failpoints=control) as held:
        model = await held.model(plain)
        assert held.deaths == []
        await model.drop()


async def test_row_8_stopped_while_idle(plain: Path, other: Path) -> None:
    async with beside(other), device(limits=msgspec.structs.replace(FAST, step_seconds=60.0)) as held:
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
