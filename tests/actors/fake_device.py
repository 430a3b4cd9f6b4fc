"""A device without a process: answers jobs from a list of tokens, counts them, and can misbehave on demand."""

from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.lowlevel

from neuron.actors.admission import ContextLimits
from neuron.actors.daemon import DeviceInfo
from neuron.actors.device.jobs import ArchHandle, Done, ForwardLogits, Job, Loaded, Logits, Progress, Ready, Reply
from neuron.actors.ports import BuildJob
from neuron.actors.resident import Resident
from neuron.actors.sources.artifact import Format, ModelArtifact
from neuron.actors.text.build import load_text_model
from neuron.runtime.errors import NeuronError
from neuron.runtime.shm import SlotSegment
from tests.harness.scripts import turn, write_script

VOCABULARY = 300


class FakePending:
    """Answers when `gate` opens (at once unless the device is held)."""

    def __init__(self, device: "FakeDevice", job: Job) -> None:
        self._device = device
        self.job = job

    async def reply(self) -> Reply:
        await self._device.gate.wait()
        await anyio.lowlevel.checkpoint()
        self._device.replied += 1
        return self._device.answer(self.job)


class FakeDevice:
    """`tokens`: what the rows spell, one a step, over and over."""

    def __init__(self, tokens: list[int]) -> None:
        self.slots = SlotSegment.create(2, VOCABULARY * 4)
        self.slots.unlink()
        self.jobs: list[Job] = []
        self.replied = 0
        self.killed: list[str] = []
        self.gate = anyio.Event()
        self.gate.set()
        #: Changes a reply before it is given.
        self.tamper: Callable[[Logits], Reply] = lambda reply: reply
        self.fill = 0.0
        self._tokens = tokens
        self._step = 0

    def hold(self) -> None:
        self.gate = anyio.Event()

    @property
    def forwards(self) -> list[ForwardLogits]:
        return [job for job in self.jobs if isinstance(job, ForwardLogits)]

    def answer(self, job: Job) -> Reply:
        if not isinstance(job, ForwardLogits):
            return Done(job.job)
        position = job.position + len(job.tokens) // 4
        if job.slot is None:
            return Done(job.job, position)
        row = self.slots.row(job.slot)
        row[:] = self.fill
        row[self._tokens[self._step % len(self._tokens)]] += 10.0
        self._step += 1
        self.slots.set_stamp(job.slot, job.stamp)
        return self.tamper(Logits(job.job, job.slot, job.stamp, position, 1))

    def post(self, build: BuildJob, *, deadline_s: float | None = None) -> FakePending:
        job = build(len(self.jobs) + 1)
        self.jobs.append(job)
        return FakePending(self, job)

    async def call(
        self,
        build: BuildJob,
        *,
        deadline_s: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Reply:
        return await self.post(build).reply()

    def kill(self, reason: str, error: Callable[[], NeuronError]) -> None:
        self.killed.append(reason)

    async def ensure_started(self) -> Ready:
        raise AssertionError("sessions start no device")

    def info(self) -> DeviceInfo:
        return DeviceInfo(
            index=0,
            id="cpu",
            name="fake",
            state="ready",
            pid=None,
            compute_capability="",
            vram_total_mb=0,
            vram_used_mb=0,
            vram_free_mb=0,
            utilization_pct=0,
            temp_c=0,
            last_seen_s=None,
        )


def fake_resident(device: FakeDevice, directory: Path, context: int = 10_000) -> Resident:
    """`directory` receives the script that the text side is read from."""
    artifact = ModelArtifact(
        model_id="test/fake",
        source_id="scripted:test/fake",
        format=Format.SCRIPTED,
        directory=directory,
        weight_files=(write_script(directory, "fake", turn("a")),),
    )
    return Resident(
        model_id="test/fake",
        device_ids=("cpu",),
        device=device,
        handle=ArchHandle(1),
        slots=device.slots,
        artifact=artifact,
        text=load_text_model(artifact, use_chat_template=False),
        loaded=Loaded(0, VOCABULARY, context, 0, 0, 0, 0, "fake"),
        limits=ContextLimits(context, context, context),
        architecture="scripted",
        loaded_at="",
    )
