"""The two platforms. CUDA against a stand-in for the library, since what is ours there is the order of calls."""

from types import SimpleNamespace
from typing import Any

import pytest

from neuron.actors.device.host import MIB
from neuron.actors.device.worker import platform
from neuron.actors.device.worker.classify import RequestFault, classify
from neuron.actors.device.worker.fault_table import Verdict
from neuron.actors.device.worker.platform import CpuPlatform, CudaPlatform, bind
from neuron.runtime.shm import SlotSegment


class FakeError(RuntimeError):
    error_code = 0


FakeError.__name__ = "AcceleratorError"


class FakeTorch:
    """Records what is asked of it. `register` is the result code of cudaHostRegister."""

    def __init__(self, devices: int = 2, register: int = 0, ones: float = 1.0) -> None:
        self.calls: list[str] = []
        self.AcceleratorError = FakeError
        self.__version__ = "2.13.0+cu130"
        self.version = SimpleNamespace(cuda="13.0")
        self.device = str
        self._register = register
        self._ones = ones
        self.cuda = SimpleNamespace(
            is_available=lambda: devices > 0,
            device_count=lambda: devices,
            set_device=lambda index: self.calls.append(f"set_device {index}"),
            get_device_properties=lambda index: SimpleNamespace(
                name="Card", total_memory=24 << 30, major=9, minor=0, index=index
            ),
            mem_get_info=lambda device: (6 << 30, 24 << 30),
            utilization=lambda device: 42,
            temperature=self._no_sensor,
            empty_cache=lambda: self.calls.append("empty_cache"),
            synchronize=lambda device: self.calls.append("synchronize"),
            cudart=lambda: SimpleNamespace(cudaHostRegister=self._pin, cudaHostUnregister=self._unpin),
        )

    def _no_sensor(self, device: str) -> int:
        raise RuntimeError("no management library")

    def ones(self, count: int, device: str) -> Any:
        self.calls.append(f"ones on {device}")
        return SimpleNamespace(sum=lambda: count * self._ones)

    def _pin(self, address: int, nbytes: int, flags: int) -> int:
        self.calls.append(f"pin {nbytes}")
        assert address % 4096 == 0
        return self._register

    def _unpin(self, address: int) -> int:
        self.calls.append("unpin")
        return 0


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(torch: FakeTorch) -> FakeTorch:
        monkeypatch.setattr(platform, "_import_torch", lambda: torch)
        return torch

    return install


def test_cpu() -> None:
    cpu = bind("cpu:1")
    assert isinstance(cpu, CpuPlatform)
    cpu.trim()
    cpu.probe()
    assert cpu.id == "cpu:1"
    vram = cpu.vram(3)
    assert vram.job == 3
    assert vram.total_mb >= vram.free_mb > 0


def test_cuda_binds_once_to_its_index(use: Any) -> None:
    torch = use(FakeTorch())
    bound = bind("cuda:1")
    assert isinstance(bound, CudaPlatform)
    assert torch.calls == ["set_device 1"]
    facts = bound.facts()
    assert (facts.name, facts.vram_total_mb, facts.compute_capability) == ("Card", 24 * 1024, "9.0")
    assert (facts.cuda_version, facts.torch_version) == ("13.0", "2.13.0+cu130")


@pytest.mark.parametrize(("devices", "device"), [(0, "cuda:0"), (2, "cuda:2")])
def test_a_gpu_that_is_not_there(use: Any, devices: int, device: str) -> None:
    use(FakeTorch(devices))
    with pytest.raises(RequestFault) as caught:
        bind(device)
    assert caught.value.name == "device_unavailable"


def test_memory_and_missing_sensors(use: Any) -> None:
    use(FakeTorch())
    vram = bind("cuda:0").vram(1)
    assert (vram.used_mb, vram.free_mb, vram.total_mb) == (18 << 10, 6 << 10, (24 << 30) // MIB)
    assert (vram.utilization_pct, vram.temp_c) == (0, 0)


def test_the_probe_computes_and_waits_for_the_device(use: Any) -> None:
    torch = use(FakeTorch())
    bind("cuda:0").probe()
    assert torch.calls[-2:] == ["ones on cuda:0", "synchronize"]
    use(FakeTorch(ones=2.0))
    with pytest.raises(RuntimeError):
        bind("cuda:0").probe()


def test_trimming_gives_the_cache_back(use: Any) -> None:
    torch = use(FakeTorch())
    bind("cuda:0").trim()
    assert torch.calls[-1] == "empty_cache"


def test_the_whole_mapping_is_pinned_and_released(use: Any) -> None:
    torch = use(FakeTorch())
    bound = bind("cuda:0")
    slots = SlotSegment.create(2, 4096)
    try:
        bound.pin(slots)
        bound.unpin(slots)
        assert slots.nbytes % 4096 == 0
        # Nothing may still be written there when the mapping goes.
        assert torch.calls[-3:] == [f"pin {slots.nbytes}", "synchronize", "unpin"]
        bound.unpin(slots)
        assert torch.calls[-1:] == ["unpin"]
        assert torch.calls.count("unpin") == 1
    finally:
        slots.close()


def test_pinning_leaves_nothing_that_keeps_the_mapping(use: Any) -> None:
    use(FakeTorch())
    bound = bind("cuda:0")
    slots = SlotSegment.create(1, 4096)
    bound.pin(slots)
    bound.unpin(slots)
    buffer = slots.buffer
    slots.close()
    with pytest.raises(ValueError, match="released"):
        buffer[0]


def test_a_failed_pin_carries_its_code_to_the_classifier(use: Any) -> None:
    use(FakeTorch(register=719))
    slots = SlotSegment.create(1, 4096)
    try:
        with pytest.raises(FakeError) as caught:
            bind("cuda:0").pin(slots)
        assert classify(caught.value).verdict is Verdict.FATAL
    finally:
        slots.close()


@pytest.mark.parametrize("code", [1, 2, 800, 801])
def test_memory_that_cannot_be_pinned_is_used_as_it_is(use: Any, code: int) -> None:
    torch = use(FakeTorch(register=code))
    bound = bind("cuda:0")
    slots = SlotSegment.create(1, 4096)
    try:
        bound.pin(slots)
        # Twice: the first takes the error that the runtime kept.
        assert torch.calls[-4:] == ["ones on cuda:0", "synchronize"] * 2
        bound.unpin(slots)
        assert "unpin" not in torch.calls
    finally:
        slots.close()


def test_a_device_that_faulted_does_not_keep_the_mapping(use: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = use(FakeTorch())
    bound = bind("cuda:0")
    slots = SlotSegment.create(1, 4096)

    def dead(device: str) -> None:
        raise FakeError("CUDA error: an illegal memory access was encountered")

    try:
        bound.pin(slots)
        monkeypatch.setattr(torch.cuda, "synchronize", dead)
        monkeypatch.setattr(torch.cuda, "cudart", lambda: SimpleNamespace(cudaHostUnregister=lambda address: 700))
        bound.unpin(slots)
    finally:
        slots.close()
