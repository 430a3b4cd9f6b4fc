"""Level 2: real device processes under a DeviceActor, driven through the actor's own interface."""

import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import numpy as np

from neuron.actors.daemon import PoisonRecord
from neuron.actors.device import jobs
from neuron.actors.device.actor import DeviceActor, PendingReply
from neuron.actors.device.jobs import ArchHandle, Loaded, Logits, Sequence
from neuron.actors.settings import LimitSettings
from neuron.runtime.shm import SlotSegment

FAST = LimitSettings(step_seconds=2.0, load_stall_seconds=6.0)
_handles = itertools.count(1)


class Device:
    """A DeviceActor with a list of its deaths."""

    def __init__(self, actor: DeviceActor) -> None:
        self.actor = actor
        self.deaths: list[PoisonRecord] = []
        self._death = anyio.Event()
        actor.on_death(self._note)

    def _note(self, record: PoisonRecord) -> None:
        self.deaths.append(record)
        self._death.set()
        self._death = anyio.Event()

    @property
    def pid(self) -> int:
        pid = self.actor.info().pid
        assert pid is not None
        return pid

    async def death(self, count: int = 1, within_s: float = 20.0) -> PoisonRecord:
        """The `count`-th record; waits for it."""
        with anyio.fail_after(within_s):
            while len(self.deaths) < count:
                await self._death.wait()
        return self.deaths[count - 1]

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    async def model(self, path: Path) -> "ScriptedModel":
        """Start the process if need be, load a script and attach its slots."""
        await self.actor.ensure_started()
        handle = ArchHandle(next(_handles))
        loaded = await self.actor.call(lambda job: jobs.LoadScripted(job, handle, str(path)))
        assert isinstance(loaded, Loaded)
        slots = SlotSegment.create(2, loaded.vocab_size * 4)
        try:
            await self.actor.call(lambda job: jobs.AttachSlots(job, handle, slots.name, 2, loaded.vocab_size * 4))
        except BaseException:
            slots.close()
            raise
        slots.unlink()
        return ScriptedModel(self.actor, handle, slots, loaded)


class ScriptedModel:
    """A loaded script with its slots; `generate` is a whole greedy request."""

    def __init__(self, actor: DeviceActor, handle: ArchHandle, slots: SlotSegment, loaded: Loaded) -> None:
        self.actor = actor
        self.handle = handle
        self.slots = slots
        self.loaded = loaded
        self._stamps = itertools.count(1)

    def post(self, tokens: list[int], position: int, slot: int | None = 0) -> PendingReply:
        data = np.array(tokens, "<i4").tobytes()
        stamp = next(self._stamps)
        return self.actor.post(
            lambda job: jobs.ForwardLogits(job, self.handle, Sequence(0), data, position, slot, stamp)
        )

    def token(self, reply: jobs.Reply) -> int:
        assert isinstance(reply, Logits)
        return int(self.slots.stamped_row(reply.slot, reply.stamp).argmax())

    async def clear(self) -> None:
        await self.actor.call(lambda job: jobs.ClearKv(job, self.handle, Sequence(0)))

    async def generate(self, prompt: bytes, count: int, *, chunk: int = 512, on_token: object = None) -> list[int]:
        """`count` greedy ids; the prompt goes in chunks. Raises the typed error of a fault."""
        await self.clear()
        position = 0
        while len(prompt) - position > chunk:
            await self.post(list(prompt[position : position + chunk]), position, None).reply()
            position += chunk
        tokens, ids = list(prompt[position:]), []
        for _ in range(count):
            reply = await self.post(tokens, position).reply()
            position += len(tokens)
            tokens = [self.token(reply)]
            ids += tokens
            if callable(on_token):
                on_token(len(ids))
        return ids

    async def drop(self) -> None:
        await self.actor.call(lambda job: jobs.Drop(job, self.handle))
        self.slots.close()


@asynccontextmanager
async def device(
    device_id: str = "cpu", limits: LimitSettings = FAST, *, failpoints: Path | None = None
) -> AsyncIterator[Device]:
    """A device actor of its own task group, stopped and reaped at the end."""
    async with anyio.create_task_group() as tasks:
        held = Device(DeviceActor(device_id, limits, tasks, failpoints=failpoints))
        try:
            yield held
        finally:
            with anyio.CancelScope(shield=True):
                await held.actor.stop(5.0)
