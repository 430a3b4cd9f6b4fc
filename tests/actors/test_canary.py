"""The canary: sung at load, asked again after a fault that the device survived, and believed."""

import pytest

from neuron.actors.canary import STEPS, Canary
from neuron.actors.daemon import ModelState
from neuron.actors.device.jobs import Fault, ForwardLogits, Job, Probe, Reply
from neuron.actors.device.replies import error_from_fault
from tests.actors import test_session
from tests.actors.fake_device import VOCABULARY, FakeDevice
from tests.actors.test_session import Bench, bench

pytestmark = pytest.mark.anyio
SURVIVED = Fault(1, "oom", 2, "insufficient_vram", "out of memory", False, "decode", "", "out_of_memory")
LOST = Fault(1, "device", 700, "device_fault", "zz", True, "control", "", "probe_failed")


class FaultyDevice(FakeDevice):
    """`faults`: kind of job -> the Fault it is answered with from now on, once."""

    def __init__(self, tokens: list[int]) -> None:
        super().__init__(tokens)
        self.faults: dict[type[Job], Fault] = {}

    def answer(self, job: Job) -> Reply:
        fault = self.faults.pop(type(job), None)
        if fault is not None:
            raise error_from_fault(fault)
        return super().answer(job)


async def sing(held: Bench) -> None:
    """Take the canary of the bench's model; its script starts over afterwards."""
    held.resident.canary = await Canary.take(held.device, held.resident.handle, held.device.slots, VOCABULARY)
    held.device._step = 0
    held.device.jobs.clear()


@pytest.fixture(autouse=True)
def _faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_session, "FakeDevice", FaultyDevice)


async def test_a_canary_is_a_greedy_continuation() -> None:
    async with bench([5, 6, 7]) as held:
        await sing(held)
        canary = held.resident.canary
        assert canary is not None
        assert canary.expected == tuple([5, 6, 7, 5, 6, 7, 5, 6, 7][:STEPS])
        assert await canary.holds()
        held.device._tokens = [5, 6, 8]
        held.device._step = 0
        assert not await canary.holds()


@pytest.mark.parametrize("sound", [True, False])
async def test_after_a_fault_that_was_survived(sound: bool) -> None:
    """Probe and canary run once, before the lock is free; a wrong note ends the process."""
    async with bench([5, 6, 7]) as held:
        await sing(held)
        assert isinstance(held.device, FaultyDevice)
        held.device.faults[ForwardLogits] = SURVIVED
        if not sound:
            held.device._tokens = [9]
        answer = await held.answer(prompt=5)
        assert answer.code == "insufficient_vram"
        assert await held.model.wait_idle(5)
        assert sum(isinstance(job, Probe) for job in held.device.jobs) == 1
        assert len(held.device.forwards) == 1 + STEPS
        assert held.device.killed == ([] if sound else ["canary_mismatch"])


async def test_a_probe_that_fails_poisons() -> None:
    async with bench([5]) as held:
        await sing(held)
        assert isinstance(held.device, FaultyDevice)
        held.device.faults = {ForwardLogits: SURVIVED, Probe: LOST}
        assert (await held.answer(prompt=5)).code == "insufficient_vram"
        assert await held.model.wait_idle(5)
        assert held.model.state is ModelState.POISONED


async def test_no_fault_no_song() -> None:
    async with bench([5]) as held:
        await sing(held)
        await held.answer(prompt=5, new=3)
        assert await held.model.wait_idle(5)
        assert len(held.device.forwards) == 3
        assert not [job for job in held.device.jobs if isinstance(job, Probe)]


async def test_models_without_a_canary_are_probed() -> None:
    async with bench([5]) as held:
        assert isinstance(held.device, FaultyDevice)
        held.device.faults[ForwardLogits] = SURVIVED
        assert (await held.answer(prompt=5)).code == "insufficient_vram"
        assert await held.model.wait_idle(5)
        assert sum(isinstance(job, Probe) for job in held.device.jobs) == 1
        assert len(held.device.forwards) == 1


async def test_a_check_that_breaks_ends_the_process_and_not_the_daemon() -> None:
    async with bench([5]) as held:
        await sing(held)
        assert isinstance(held.device, FaultyDevice)
        assert held.resident.canary is not None
        held.device.faults[ForwardLogits] = SURVIVED
        held.resident.canary._vocab_size = 0  # Divides by it.
        assert (await held.answer(prompt=5)).code == "insufficient_vram"
        assert await held.model.wait_idle(5)
        assert held.device.killed == ["unverified"]
        assert held.model.turnstile.active is None
