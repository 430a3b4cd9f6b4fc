"""Rows 10-21, 30-32 and 38 of the fault matrix at the device actor: real processes, nothing left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import msgspec
import pytest

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
from tests.fault.device_rows import arm, beside, cured
from tests.harness.invariants import gone
from tests.harness.level2 import FAST, device
from tests.harness.scripts import fault, turn, write_script

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_left")]


# -- rows 10-17: faults that are raised --------------------------------------------------------------


async def test_row_10_a_device_fault_ends_the_process(tmp_path: Path, other: Path) -> None:
    """One code here; each code in each phase at level 1, in tests/actors/device/test_loop.py."""
    text = "CUDA error: an illegal memory access was encountered"
    path = write_script(tmp_path, "faulty", turn("a", "b", "c", repeat=True, fault=fault("device", at=1, text=text)))
    async with beside(other), device() as held:
        model = await held.model(path)
        pid = held.pid
        with pytest.raises(DeviceFault) as caught:
            await model.generate(b"hi", 3)
        assert text not in caught.value.message
        record = await held.death()
        assert (record.code, record.phase) == (700, "decode")
        assert record.reason == "illegal_address: CUDA error: an illegal memory access was encountered"
        model.slots.close()
        await cured(held, path, pid)


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
    control = arm(tmp_path / "c.json", {"point": "worker.probe", "action": "raise", "text": "zz"})
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
    control = arm(tmp_path / "c.json", {"point": "worker.decode.step", "action": "raise", "text": "zz /secret"})
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
    control = arm(tmp_path / "c.json")
    async with device(failpoints=control) as held:
        model = await held.model(plain)
        await model.clear()
        arm(control, {"point": "worker.reply", "action": action})
        with pytest.raises(ProtocolError):
            await model.post([104], 0).reply()
        assert (await held.death()).reason == "protocol_error"
        model.slots.close()


async def test_row_21_a_second_answer_is_dropped_and_counted(tmp_path: Path, plain: Path) -> None:
    control = arm(tmp_path / "c.json")
    async with device(failpoints=control) as held:
        model = await held.model(plain)
        arm(control, {"point": "worker.reply", "action": "duplicate_reply", "count": 5})
        assert await model.generate(b"hi", 4) == [97, 98, 99, 97]
        await model.clear()
        assert held.actor.counters.stale >= 4
        assert held.deaths == []
        await model.drop()


async def test_a_lost_answer_ends_at_the_deadline(tmp_path: Path, plain: Path) -> None:
    control = arm(tmp_path / "c.json")
    async with device(limits=msgspec.structs.replace(FAST, step_seconds=1.0), failpoints=control) as held:
        model = await held.model(plain)
        await model.generate(b"hi", 1)
        arm(control, {"point": "worker.reply", "action": "drop_reply"})
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
