"""Device ids and host facts."""

from pathlib import Path

import pytest

from neuron.actors.device.devices import device_index, known_devices, parse_device
from neuron.actors.device.host import host_memory, processor_name
from neuron.actors.errors import UnsupportedDevice


@pytest.fixture
def two_gpus(tmp_path: Path) -> Path:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    return tmp_path


def test_a_host_without_gpus_lists_cpu_devices(tmp_path: Path) -> None:
    assert known_devices(tmp_path)[:3] == ["cpu", "cpu:1", "cpu:2"]
    assert known_devices(tmp_path / "absent")[0] == "cpu"


def test_gpus_come_by_their_nodes(two_gpus: Path) -> None:
    assert known_devices(two_gpus) == ["cuda:0", "cuda:1"]


@pytest.mark.parametrize(
    ("value", "device"),
    [(0, "cpu"), (1, "cpu:1"), ("0", "cpu"), ("cpu", "cpu"), ("cpu:0", "cpu"), ("CPU:2", "cpu:2"), (" cpu ", "cpu")],
)
def test_names_on_a_cpu_host(value: str | int, device: str, tmp_path: Path) -> None:
    assert parse_device(value, nodes=tmp_path) == device


@pytest.mark.parametrize(
    ("value", "device"), [(0, "cuda:0"), ("1", "cuda:1"), ("cuda", "cuda:0"), ("cuda:1", "cuda:1"), ("cpu", "cpu")]
)
def test_names_on_a_gpu_host(value: str | int, device: str, two_gpus: Path) -> None:
    assert parse_device(value, nodes=two_gpus) == device


@pytest.mark.parametrize(
    "value", ["cuda:0", "cuda", "tpu", "", "cpu:01", "cpu:-1", "cpu:99", -1, 99, "9" * 50, True, "cpu:1:2", "../dev"]
)
def test_what_is_not_there(value: str | int, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedDevice) as caught:
        parse_device(value, model_id="org/name", nodes=tmp_path)
    assert caught.value.extra["model_id"] == "org/name"


@pytest.mark.parametrize(("device", "index"), [("cpu", 0), ("cpu:3", 3), ("cuda:1", 1)])
def test_index(device: str, index: int) -> None:
    assert device_index(device) == index


def test_memory_without_and_with_a_cgroup_limit(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 1048576 kB\nMemFree: 1 kB\nMemAvailable: 524288 kB\n")
    cgroup = tmp_path / "cgroup"
    cgroup.mkdir()
    assert host_memory(meminfo, cgroup).total_mb == 1024
    (cgroup / "memory.max").write_text("max\n")
    assert host_memory(meminfo, cgroup).free_mb == 512
    (cgroup / "memory.max").write_text(f"{256 << 20}\n")
    (cgroup / "memory.current").write_text(f"{200 << 20}\n")
    (cgroup / "memory.stat").write_text(f"anon 5\ninactive_file {100 << 20}\n")
    memory = host_memory(meminfo, cgroup)
    assert (memory.total_mb, memory.free_mb, memory.used_mb) == (256, 156, 100)


def test_unreadable_facts_are_zero_not_errors(tmp_path: Path) -> None:
    assert host_memory(tmp_path / "a", tmp_path / "b").total_mb == 0
    assert processor_name(tmp_path / "a")
