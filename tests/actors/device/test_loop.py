"""The worker's job loop (level 1): handshake, handles, faults in each phase, failpoints, garbage."""

import json
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from neuron.actors.device import jobs
from neuron.actors.device.jobs import PROTOCOL_VERSION, ArchHandle, Done, Fault, Job, Sequence, TpHandle
from neuron.actors.device.worker.classify import RequestFault
from neuron.actors.device.worker.fault_table import CODE_RULES, Verdict
from neuron.actors.device.worker.platform import CpuPlatform, Platform
from neuron.runtime.frames import FrameEncoder
from neuron.runtime.link import LinkClosed
from neuron.runtime.shm import SlotSegment
from tests.harness.level1 import Driver, InProcessWorker
from tests.harness.scripts import turn, write_script

pytestmark = pytest.mark.usefixtures("nothing_left")

H = ArchHandle(1)
S = Sequence(0)
TOKENS = np.array([104, 105], "<i4").tobytes()
STICKY_AND_FATAL = [rule for rule in CODE_RULES if rule.verdict is Verdict.FATAL]


def _attach_of(name: str, rows: int, row_bytes: int, job: int) -> Job:
    return jobs.AttachSlots(job, H, name, rows, row_bytes)


def _arm(path: Path, *entries: dict[str, object]) -> str:
    path.write_text(json.dumps(entries))
    return str(path)


@pytest.fixture
def script_path(tmp_path: Path) -> str:
    return str(write_script(tmp_path, "plain", turn("a", "b", "c", repeat=True)))


def test_ready_tells_the_device() -> None:
    with InProcessWorker(greet=False) as worker:
        ready = worker.ask(lambda job: jobs.Hello(job, PROTOCOL_VERSION, "cpu:3"))
        assert isinstance(ready, jobs.Ready)
        assert (ready.protocol, ready.device) == (PROTOCOL_VERSION, "cpu:3")
        assert ready.name
        assert ready.vram_total_mb > 0


def test_another_protocol_version_is_refused() -> None:
    with InProcessWorker(greet=False) as worker:
        found = worker.ask(lambda job: jobs.Hello(job, PROTOCOL_VERSION + 1, "cpu"))
        assert isinstance(found, Fault)
        assert (found.kind, found.name) == ("protocol", "protocol_error")
        assert worker.ended() == 64


def test_the_first_frame_must_be_hello() -> None:
    with InProcessWorker(greet=False) as worker:
        assert isinstance(worker.ask(jobs.QueryVram), Fault)
        assert worker.ended() == 64


@pytest.mark.parametrize("device", ["cuda:0", "cuda", "tpu", "cpu:x", ""])
def test_a_device_that_is_not_there(device: str) -> None:
    with InProcessWorker(greet=False) as worker:
        found = worker.ask(lambda job: jobs.Hello(job, PROTOCOL_VERSION, device))
        assert isinstance(found, Fault)
        assert (found.name, found.phase, found.device_fault) == ("device_unavailable", "start", True)
        assert worker.ended() == 70


def test_a_fresh_device_that_fails_its_probe_is_unhealthy() -> None:
    class Broken(CpuPlatform):
        def probe(self) -> None:
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")

    with InProcessWorker(greet=False, bind_device=Broken) as worker:
        found = worker.ask(lambda job: jobs.Hello(job, PROTOCOL_VERSION, "cpu"))
        assert isinstance(found, Fault)
        assert found.device_fault
        assert worker.ended() == 70


@pytest.mark.parametrize(
    "build",
    [
        lambda job: jobs.LoadShard(job, TpHandle(1), 7, "c", (), 10),
        lambda job: jobs.LoadScripted(job, ArchHandle(1), "x", (), 7),
        lambda job: jobs.GroupSanity(job, 7),
    ],
)
def test_a_group_that_the_process_is_not_in(build: Callable[[int], Job]) -> None:
    with InProcessWorker() as worker:
        found = worker.ask(build)
        assert isinstance(found, Fault)
        assert (found.kind, found.name, found.device_fault) == ("host", "internal_error", False)
        assert isinstance(worker.ask(jobs.QueryVram), jobs.Vram)


@pytest.mark.parametrize(
    "build",
    [
        lambda job: jobs.ForwardLogits(job, H, S, TOKENS, 0, 0, 1),
        lambda job: jobs.ClearKv(job, H, S),
        lambda job: jobs.AttachSlots(job, H, "neuron-1-" + "0" * 24, 1, 4),
    ],
)
def test_an_unknown_handle_is_a_host_fault(build: Callable[[int], Job]) -> None:
    with InProcessWorker() as worker:
        found = worker.ask(build)
        assert isinstance(found, Fault)
        assert (found.kind, found.device_fault) == ("host", False)


def test_drop_is_done_for_known_and_unknown_handles(script_path: str) -> None:
    with InProcessWorker() as worker:
        driver = Driver(worker, script_path)
        for _ in range(2):
            assert isinstance(worker.ask(lambda job: jobs.Drop(job, H)), Done)
        assert isinstance(driver.forward(b"hi", 0), Fault)
        driver.close()


def test_a_handle_in_use_is_not_loaded_over(script_path: str) -> None:
    with InProcessWorker() as worker:
        driver = Driver(worker, script_path)
        assert isinstance(worker.ask(lambda job: jobs.LoadScripted(job, H, script_path)), Fault)
        assert driver.generate(b"hi", 2) == [ord("a"), ord("b")]
        driver.close()


def test_slots_of_the_wrong_shape_or_place_are_refused(script_path: str) -> None:
    with InProcessWorker() as worker:
        driver = Driver(worker, script_path)
        row_bytes = driver.loaded.vocab_size * 4
        small = SlotSegment.create(1, row_bytes)
        for rows, size, name in ((1, row_bytes - 4, small.name), (2, row_bytes, small.name), (1, row_bytes, "../x")):
            found = worker.ask(partial(_attach_of, name, rows, size))
            assert isinstance(found, Fault)
            assert not found.device_fault
        assert isinstance(driver.forward(b"hi", 0, slot=2), Fault)
        assert isinstance(driver.forward(b"hi", 0, slot=-1), Fault)
        assert driver.generate(b"hi", 1) == [ord("a")]
        small.close()
        driver.close()


def test_attaching_again_replaces_the_slots(script_path: str) -> None:
    with InProcessWorker() as worker:
        driver = Driver(worker, script_path)
        first, driver.slots = driver.slots, SlotSegment.create(3, driver.loaded.vocab_size * 4)
        name, size = driver.slots.name, driver.loaded.vocab_size * 4
        assert isinstance(worker.ask(lambda job: jobs.AttachSlots(job, H, name, 3, size)), Done)
        assert isinstance(driver.forward(b"hi", 0, slot=2), np.ndarray)
        first.close()
        driver.close()


def test_real_weights_that_are_not_there_are_a_typed_load_error(tmp_path: Path) -> None:
    pytest.importorskip("neuron.kernels.load")
    with InProcessWorker() as worker:
        found = worker.ask(lambda job: jobs.LoadGguf(job, H, (str(tmp_path / "absent.gguf"),), 128))
        assert isinstance(found, Fault)
        assert (found.kind, found.phase, found.device_fault) == ("load", "load", False)
        assert str(tmp_path) not in found.public
        assert isinstance(worker.ask(jobs.QueryVram), jobs.Vram)


def test_shutdown_answers_then_ends() -> None:
    with InProcessWorker() as worker:
        assert isinstance(worker.ask(jobs.Shutdown), Done)
        assert worker.ended() == 0


def test_the_end_of_the_link_ends_the_loop() -> None:
    with InProcessWorker() as worker:
        worker.link.close()
        assert worker.ended() == 83


def _frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">I", 1 << 30),
        struct.pack(">I", 0),
        _frame(b"abc"),
        _frame(b"\x93\xa9QueryVr\xff\x01"),
        _frame(b"\x93" * 100_000),
        _frame(b"cos\nsystem\n(S'true'\ntR."),  # A pickle that would run a command.
    ],
    ids=["long", "empty", "text", "utf8", "nested", "pickle"],
)
def test_garbage_ends_the_loop(frame: bytes) -> None:
    with InProcessWorker() as worker:
        worker.socket.sendall(frame)
        assert worker.ended() == 64
        with pytest.raises(LinkClosed):
            worker.link.receive(5)


# -- failpoints --------------------------------------------------------------------------------------


def _boom(error: str = "runtime", **keys: object) -> dict[str, object]:
    return {"action": "raise", "error": error, **keys}


POINTS: dict[str, Callable[[InProcessWorker, Driver], object]] = {
    "worker.prefill.chunk": lambda worker, driver: driver.forward(b"hi", 0),
    "worker.decode.step": lambda worker, driver: driver.forward(b"h", 0),
    "worker.clear_kv": lambda worker, driver: worker.ask(lambda job: jobs.ClearKv(job, H, S)),
    "worker.drop": lambda worker, driver: worker.ask(lambda job: jobs.Drop(job, H)),
    "worker.attach": lambda worker, driver: worker.ask(lambda job: jobs.AttachSlots(job, H, "x", 1, 4)),
}


@pytest.mark.parametrize("point", sorted(POINTS))
@pytest.mark.parametrize("rule", STICKY_AND_FATAL, ids=lambda rule: str(rule.code))
def test_each_sticky_and_fatal_code_in_each_phase(point: str, rule: object, tmp_path: Path, script_path: str) -> None:
    control = tmp_path / "control.json"
    with InProcessWorker(failpoints=_arm(control)) as worker:
        driver = Driver(worker, script_path)
        code = rule.code  # type: ignore[attr-defined]
        _arm(control, {"point": point, **_boom("accelerator", code=code, text="x")})
        found = POINTS[point](worker, driver)
        assert isinstance(found, Fault)
        assert (found.kind, found.code, found.device_fault) == ("device", code, True)
        assert worker.ended() == 70
        driver.close()


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([_boom("oom")], ("oom", "insufficient_vram", False, "out_of_memory")),
        ([_boom("oom"), {"point": "worker.probe", **_boom()}], ("device", "device_fault", True, "probe_failed")),
        (
            [_boom(text="CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")],
            ("host", "internal_error", False, "cublas_alloc_failed"),
        ),
        (
            [
                _boom(text="cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"),
                {"point": "worker.probe", **_boom("accelerator", code=700)},
            ],
            ("device", "device_fault", True, "probe_failed"),
        ),
        ([_boom("cuda_api", code=700, text="UNKNOWN_CUDA_ERROR")], ("device", "device_fault", True, "illegal_address")),
        ([_boom("cuda_api", code=701, text="x")], ("host", "internal_error", False, "launch_out_of_resources")),
        ([_boom("dist", text="ncclRemoteError: gone")], ("device", "device_fault", True, "nccl_remote")),
        ([_boom("runtime", text="zz")], ("device", "device_fault", True, "unclassified")),
        ([_boom("value", text="zz")], ("host", "internal_error", False, "host_error")),
        ([_boom("accelerator", code=209, text="x")], ("device", "device_fault", True, "no_kernel_image")),
        ([{"action": "nan"}], ("nan", "nan_logits", False, "nan_logits")),
    ],
)
def test_verdicts_in_a_step(
    entries: list[dict[str, object]], expected: tuple[str, str, bool, str], tmp_path: Path, script_path: str
) -> None:
    control = tmp_path / "control.json"
    armed = [{"point": "worker.prefill.chunk", **entries[0]}, *entries[1:]]
    with InProcessWorker(failpoints=_arm(control, *armed)) as worker:
        driver = Driver(worker, script_path)
        found = driver.forward(b"hi", 0)
        assert isinstance(found, Fault)
        assert (found.kind, found.name, found.device_fault, found.reason) == expected
        if found.device_fault:
            assert worker.ended() == 70
        else:
            assert driver.generate(b"hi", 2) == [ord("a"), ord("b")]
        driver.close()


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (_boom("oom"), ("oom", "insufficient_vram", False)),
        (_boom("accelerator", code=46), ("load", "device_unavailable", False)),
        (_boom("accelerator", code=209), ("load", "unsupported_device", False)),
        (_boom("accelerator", code=700), ("device", "device_fault", True)),
        (_boom("runtime", text="zz"), ("device", "device_fault", True)),
    ],
)
@pytest.mark.parametrize("point", ["worker.load.begin", "worker.load.progress", "worker.load.end"])
def test_verdicts_in_a_load(
    point: str, entry: dict[str, object], expected: tuple[str, str, bool], tmp_path: Path, script_path: str
) -> None:
    control = _arm(tmp_path / "control.json", {"point": point, **entry})
    with InProcessWorker(failpoints=control) as worker:
        found = worker.ask(lambda job: jobs.LoadScripted(job, H, script_path))
        assert isinstance(found, Fault)
        assert (found.kind, found.name, found.device_fault) == expected
        assert found.phase == "load"
        if not found.device_fault:
            assert isinstance(worker.ask(lambda job: jobs.LoadScripted(job, H, script_path)), jobs.Loaded)


def test_a_failed_step_leaves_the_sequence_empty(tmp_path: Path, script_path: str) -> None:
    """Half a step must not be built upon."""
    control = _arm(tmp_path / "control.json", {"point": "worker.decode.step", **_boom("value"), "start": 2})
    with InProcessWorker(failpoints=control) as worker:
        driver = Driver(worker, script_path)
        driver.forward(b"h", 0)
        assert isinstance(driver.forward(b"i", 1), Fault)
        assert isinstance(driver.forward(b"j", 1), Fault)  # Position 1 is not there any more.
        assert isinstance(driver.forward(b"hi", 0), np.ndarray)
        driver.close()


def test_a_probe_job(tmp_path: Path) -> None:
    control = _arm(tmp_path / "control.json", {"point": "worker.probe", **_boom("runtime"), "start": 2})
    with InProcessWorker(failpoints=control) as worker:
        assert isinstance(worker.ask(jobs.Probe), Done)
        found = worker.ask(jobs.Probe)
        assert isinstance(found, Fault)
        assert found.device_fault


def test_pinning_happens_once_attached_and_is_undone(script_path: str) -> None:
    calls: list[str] = []

    class Pinning(CpuPlatform):
        def pin(self, slots: SlotSegment) -> None:
            calls.append("pin")

        def unpin(self, slots: SlotSegment) -> None:
            calls.append("unpin")

    def bind(device: str) -> Platform:
        return Pinning(device)

    with InProcessWorker(bind_device=bind) as worker:
        driver = Driver(worker, script_path)
        assert calls == ["pin"]
        worker.ask(lambda job: jobs.Drop(job, H))
        assert calls == ["pin", "unpin"]
        driver.close()


def test_a_pin_that_fails_is_a_fault(script_path: str) -> None:
    class Unpinnable(CpuPlatform):
        def pin(self, slots: SlotSegment) -> None:
            raise RequestFault("internal_error", "no")

    with InProcessWorker(bind_device=Unpinnable) as worker:
        worker.ask(lambda job: jobs.LoadScripted(job, H, script_path))
        slots = SlotSegment.create(1, 258 * 4)
        found = worker.ask(lambda job: jobs.AttachSlots(job, H, slots.name, 1, 258 * 4))
        assert isinstance(found, Fault)
        slots.close()


def test_a_load_that_is_to_be_dropped_stops_at_its_next_step(script_path: str) -> None:
    """The Drop is seen behind other jobs; these are answered in their order all the same."""
    encoder = FrameEncoder()
    load, other, drop = jobs.LoadScripted(100, H, script_path), jobs.QueryVram(101), jobs.Drop(102, H)
    with InProcessWorker() as worker:
        worker.socket.sendall(b"".join(bytes(encoder.encode(job)) for job in (load, other, drop)))
        stopped = worker.answer(100)
        assert isinstance(stopped, Fault)
        assert (stopped.kind, stopped.name, stopped.device_fault) == ("host", "load_stopped", False)
        assert worker.progress == []
        assert isinstance(worker.answer(101), jobs.Vram)
        assert isinstance(worker.answer(102), Done)
        # A Drop of another model stops nothing.
        load, drop = jobs.LoadScripted(103, ArchHandle(2), script_path), jobs.Drop(104, ArchHandle(3))
        worker.socket.sendall(b"".join(bytes(encoder.encode(job)) for job in (load, drop)))
        assert isinstance(worker.answer(103), jobs.Loaded)
        assert isinstance(worker.answer(104), Done)
