"""Which devices a load gets, alone and shared out."""

import itertools
from typing import Any

import msgspec
import pytest

from neuron.actors import device_set
from neuron.actors.daemon import DeviceInfo
from neuron.actors.device_set import DeviceSet
from neuron.actors.errors import UnsupportedDevice

INFO = DeviceInfo(
    index=0,
    id="",
    name="",
    state="idle",
    pid=None,
    compute_capability="",
    vram_total_mb=100,
    vram_used_mb=0,
    vram_free_mb=0,
    utilization_pct=0,
    temp_c=0,
    last_seen_s=None,
)


class Device:
    """As much of a device actor as choosing needs."""

    def __init__(self, device_id: str, free_mb: int) -> None:
        self.device_id = device_id
        self._info = msgspec.structs.replace(INFO, id=device_id, vram_free_mb=free_mb)

    def info(self) -> DeviceInfo:
        return self._info

    def on_death(self, callback: object) -> None:
        pass

    on_end = on_death


def devices(monkeypatch: pytest.MonkeyPatch, **free_mb: int) -> DeviceSet:
    """GPUs with so much free memory each; without any, a host with CPU devices."""
    known = [f"cuda:{index}" for index in range(len(free_mb))] or ["cpu", "cpu:1", "cpu:2", "cpu:3"]
    monkeypatch.setattr(device_set, "known_devices", lambda: known)
    monkeypatch.setattr("neuron.actors.device.devices.known_devices", lambda _nodes=None: known)
    free = dict(zip(known, free_mb.values(), strict=False))
    make: Any = lambda device_id: Device(device_id, free.get(device_id, 0))  # noqa: E731
    return DeviceSet(make, lambda _ids, _record: None)


def test_gpus_with_the_most_room_in_their_own_order(monkeypatch: pytest.MonkeyPatch) -> None:
    held = devices(monkeypatch, a=10, b=70, c=90, d=80)
    assert held.choose(1, None, {}) == ("cuda:2",)
    assert held.choose(2, None, {}) == ("cuda:2", "cuda:3")
    assert held.choose(3, None, {}) == ("cuda:1", "cuda:2", "cuda:3")
    assert held.choose(4, None, {}) == ("cuda:0", "cuda:1", "cuda:2", "cuda:3")


def test_a_gpu_of_which_nothing_is_known_holds_nothing_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures come from its process: without one, none of our models is on it."""
    held = devices(monkeypatch, a=90, b=0, c=70)
    assert held.choose(1, None, {"cuda:0": 1, "cuda:2": 1}) == ("cuda:1",)


def test_cpu_devices_without_models_first(monkeypatch: pytest.MonkeyPatch) -> None:
    held = devices(monkeypatch)
    assert held.choose(1, None, {"cpu": 3}) == ("cpu",)
    assert held.choose(2, None, {}) == ("cpu", "cpu:1")
    assert held.choose(2, None, {"cpu": 1, "cpu:2": 1}) == ("cpu:1", "cpu:3")
    # Looking for them makes none of them.
    assert [info.id for info in held.infos()] == ["cpu"]


def test_the_first_of_those_that_were_named(monkeypatch: pytest.MonkeyPatch) -> None:
    held = devices(monkeypatch, a=10, b=70, c=90, d=80)
    assert held.choose(2, ("3", "cuda:0", "cuda:1"), {}) == ("cuda:0", "cuda:3")
    assert held.choose(1, ("cuda:1", "cuda:2"), {}) == ("cuda:1",)


def test_the_same_devices_in_any_order_are_the_same_group(monkeypatch: pytest.MonkeyPatch) -> None:
    held = devices(monkeypatch)
    orders = itertools.permutations(("cpu", "cpu:1", "cpu:2", "cpu:3"))
    assert len({id(held.port(held.choose(4, order, {}))) for order in orders}) == 1


def test_devices_of_two_kinds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    held = devices(monkeypatch, a=10, b=10)
    with pytest.raises(UnsupportedDevice):
        held.choose(2, ("cuda:0", "cpu"), {})
    assert held.choose(1, ("cuda:0", "cpu"), {}) == ("cuda:0",)


@pytest.mark.parametrize("asked", [None, ("cuda:0",), ("cuda:0", "0"), ("cuda:0", "cuda:7")])
def test_too_few(monkeypatch: pytest.MonkeyPatch, asked: tuple[str, ...] | None) -> None:
    held = devices(monkeypatch, a=10)
    with pytest.raises(UnsupportedDevice):
        held.choose(2, asked, {})


def test_a_group_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    held = devices(monkeypatch)
    assert held.port(("cpu", "cpu:1")) is held.port(("cpu", "cpu:1"))
    assert held.port(("cpu",)) is held.get("cpu")
