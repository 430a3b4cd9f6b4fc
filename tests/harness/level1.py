"""Level 1: the worker's job loop in a thread of this process, over a socketpair. No process, no event loop."""

import itertools
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from neuron.actors.device import jobs
from neuron.actors.device.jobs import PROTOCOL_VERSION, ArchHandle, Beat, Fault, Job, Progress, Reply, Sequence
from neuron.actors.device.worker.loop import WorkerLoop
from neuron.actors.device.worker.platform import Platform, bind
from neuron.runtime.link import BlockingLink
from neuron.runtime.shm import SlotSegment

WAIT_SECONDS = 20.0


class InProcessWorker:
    """`with InProcessWorker() as worker: worker.ask(jobs.QueryVram)`. Says Hello itself unless `greet` is false."""

    def __init__(
        self,
        device: str = "cpu",
        *,
        greet: bool = True,
        failpoints: str | None = None,
        bind_device: Callable[[str], Platform] = bind,
    ) -> None:
        ours, theirs = socket.socketpair()
        self._theirs = BlockingLink[Job](theirs, Job)
        self.link = BlockingLink[Reply](ours, Reply)
        self.socket = ours
        self._loop = WorkerLoop(self._theirs, bind_device=bind_device, pid=1)
        self._thread = threading.Thread(target=self._run, name="worker loop")
        self._ids = itertools.count(1)
        self._hello = (device, failpoints) if greet else None
        #: Exit status, once `run` has returned.
        self.status: int | None = None
        #: Frames of job 0 and Progress seen so far.
        self.unasked: list[Reply] = []
        self.progress: list[Progress] = []

    def _run(self) -> None:
        self.status = self._loop.run()
        self._theirs.close()

    def __enter__(self) -> Self:
        self._thread.start()
        if self._hello is not None:
            device, failpoints = self._hello
            reply = self.ask(lambda job: jobs.Hello(job, PROTOCOL_VERSION, device, failpoints))
            assert isinstance(reply, jobs.Ready), reply
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.link.close()
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive()
        del self._loop  # A process's end gives its mappings back; here the object's does.

    def ended(self) -> int:
        """The exit status; waits for it."""
        self._thread.join(WAIT_SECONDS)
        assert self.status is not None
        return self.status

    def ask(self, build: Callable[[int], Job]) -> Reply:
        """Send one job and return the frame that ends it."""
        job = build(next(self._ids))
        self.link.send(job)
        return self.answer(job.job)

    def answer(self, job: int) -> Reply:
        while True:
            reply = self.link.receive(WAIT_SECONDS)
            assert reply is not None, "no answer"
            if isinstance(reply, Progress):
                self.progress.append(reply)
            elif isinstance(reply, Beat | jobs.ScriptFaultFired):
                self.unasked.append(reply)
            else:
                assert reply.job == job
                return reply


class Driver:
    """One scripted model of an InProcessWorker, with slots, driven by hand."""

    def __init__(self, worker: InProcessWorker, path: str, handle: int = 1, rows: int = 2) -> None:
        self.worker = worker
        self.handle = ArchHandle(handle)
        loaded = worker.ask(lambda job: jobs.LoadScripted(job, self.handle, path))
        assert isinstance(loaded, jobs.Loaded), loaded
        self.loaded = loaded
        self.slots = SlotSegment.create(rows, loaded.vocab_size * 4)
        attached = worker.ask(
            lambda job: jobs.AttachSlots(job, self.handle, self.slots.name, rows, loaded.vocab_size * 4)
        )
        assert isinstance(attached, jobs.Done), attached
        self.slots.unlink()
        self._stamps = itertools.count(1)

    def forward(
        self, tokens: list[int] | bytes, position: int, *, slot: int | None = 0, sequence: int = 0
    ) -> npt.NDArray[np.float32] | Fault | None:
        """The row, None for a chunk without logits, or the Fault."""
        data = np.array(list(tokens), "<i4").tobytes()
        stamp = next(self._stamps)
        reply = self.worker.ask(
            lambda job: jobs.ForwardLogits(job, self.handle, Sequence(sequence), data, position, slot, stamp)
        )
        if isinstance(reply, jobs.Logits):
            assert reply.position == position + len(tokens)
            return self.slots.stamped_row(reply.slot, reply.stamp)
        return reply if isinstance(reply, Fault) else None

    def clear(self, keep: int = 0, sequence: int = 0) -> int:
        reply = self.worker.ask(lambda job: jobs.ClearKv(job, self.handle, Sequence(sequence), keep))
        assert isinstance(reply, jobs.Done)
        return reply.value

    def generate(self, prompt: bytes, limit: int = 100, sequence: int = 0) -> list[int] | Fault:
        """Greedy ids up to and with `limit`; stops at a Fault, which is returned."""
        self.clear(sequence=sequence)
        ids: list[int] = []
        tokens, position = list(prompt), 0
        while len(ids) < limit:
            row = self.forward(tokens, position, sequence=sequence)
            if isinstance(row, Fault):
                return row
            assert row is not None
            position += len(tokens)
            tokens = [int(row.argmax())]
            ids += tokens
        return ids

    def close(self) -> None:
        self.slots.close()
