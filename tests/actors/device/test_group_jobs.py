"""The jobs of a group in two job loops of this process: joining, loading a shard, agreed steps, failures."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuron.actors.device import jobs
from neuron.actors.device.jobs import (
    PEER_FAILED,
    ArchHandle,
    Done,
    Fault,
    Job,
    Loaded,
    Logits,
    Reply,
    Sequence,
    TpHandle,
)
from neuron.runtime.shm import SlotSegment
from tests.harness.level1 import InProcessWorker
from tests.harness.scripts import turn, write_script
from tests.kernels.decoder.tiny import VOCAB, load, run, some_ids, tiny

GROUP = 3
S = Sequence(0)
H = ArchHandle(1)


class Ranks:
    """Every job to all of them at once, each in a thread; what they answered, by rank."""

    def __init__(self, workers: list[InProcessWorker]) -> None:
        self.workers = workers

    def ask(self, build: Callable[[int, int], Job]) -> list[Any]:
        """`build(job id, rank)`."""
        answers: list[Reply | None] = [None] * len(self.workers)

        def one(rank: int) -> None:
            answers[rank] = self.workers[rank].ask(lambda job: build(job, rank))

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(self.workers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60.0)
        assert None not in answers
        return answers

    def join(self, directory: Path, *, collectives: bool) -> None:
        directory.mkdir(exist_ok=True)
        size = len(self.workers)
        joined = self.ask(lambda job, rank: jobs.GroupInit(job, GROUP, rank, size, str(directory), 20.0, collectives))
        assert all(isinstance(answer, Done) for answer in joined), joined
        sane = self.ask(lambda job, _rank: jobs.GroupSanity(job, GROUP))
        assert [answer.value for answer in sane] == [size] * size

    def step(self, ids: list[int], position: int, stamp: int = 1, **by_rank: int) -> list[Any]:
        def build(job: int, rank: int) -> Job:
            at = by_rank.get(f"rank{rank}", position)
            return jobs.ForwardLogits(job, H, S, np.array(ids, "<i4").tobytes(), at, 0, stamp)

        return self.ask(build)


@contextmanager
def ranks(count: int = 2, failpoints: Path | None = None) -> Iterator[Ranks]:
    with ExitStack() as stack:
        control = None if failpoints is None else str(failpoints)
        names = ["cpu", *(f"cpu:{index}" for index in range(1, count))]
        yield Ranks([stack.enter_context(InProcessWorker(name, failpoints=control)) for name in names])


@contextmanager
def slots(held: Ranks, size: int) -> Iterator[SlotSegment]:
    segment = SlotSegment.create(1, size * 4)
    try:
        leader = held.workers[0]
        answer = leader.ask(lambda job: jobs.AttachSlots(job, H, segment.name, 1, size * 4))
        assert isinstance(answer, Done)
        segment.unlink()
        yield segment
    finally:
        segment.close()


def scripted(held: Ranks, path: Path) -> None:
    found = held.ask(lambda job, _rank: jobs.LoadScripted(job, H, str(path), (), GROUP))
    assert all(isinstance(answer, Loaded) for answer in found), found


def test_two_ranks_of_a_real_model(tmp_path: Path) -> None:
    tiny(tmp_path / "model", "Llama")
    files = (str(tmp_path / "model" / "model.safetensors"),)
    config = str(tmp_path / "model" / "config.json")
    ids = some_ids(20)
    alone = load(tmp_path / "model")
    expected = run(alone, ids, 20)
    alone.close()
    with ranks() as held:
        held.join(tmp_path / "store", collectives=True)
        found = held.ask(lambda job, _rank: jobs.LoadShard(job, TpHandle(1), GROUP, config, files, 128, "f32"))
        assert all(isinstance(answer, Loaded) for answer in found), found
        assert {answer.vocab_size for answer in found} == {VOCAB}
        with slots(held, VOCAB) as segment:
            for answer in held.step(ids.tolist(), 0):
                assert isinstance(answer, Logits), answer
                assert answer.position == 20
            assert np.abs(segment.stamped_row(0, 1) - expected).max() < 1e-4
            # Ids outside the vocabulary are refused by both, and neither waits for the other.
            assert [answer.name for answer in held.step([VOCAB], 20)] == ["internal_error"] * 2
            held.step(ids.tolist(), 0, stamp=2)
            assert np.abs(segment.stamped_row(0, 2) - expected).max() < 1e-4
        dropped = held.ask(lambda job, _rank: jobs.Drop(job, H))
        assert all(isinstance(answer, Done) for answer in dropped)


def test_ranks_run_a_script_together_and_the_leader_s_row_counts(tmp_path: Path) -> None:
    path = write_script(tmp_path, "s", turn("a", "b"))
    with ranks(3) as held:
        held.join(tmp_path / "store", collectives=False)
        scripted(held, path)
        with slots(held, 257) as segment:
            assert all(isinstance(answer, Logits) for answer in held.step([104], 0))
            assert segment.stamped_row(0, 1).argmax() == ord("a")


@pytest.mark.parametrize("victim", [0, 1])
def test_what_one_cannot_begin_the_others_are_told(tmp_path: Path, victim: int) -> None:
    control = tmp_path / "c.json"
    control.write_text("[]")
    path = write_script(tmp_path, "s", turn("a", "b"))
    device = ("cpu", "cpu:1")[victim]
    with ranks(failpoints=control) as held:
        held.join(tmp_path / "store", collectives=False)
        scripted(held, path)
        entry = {"point": "worker.decode.step", "device": device, "action": "raise", "error": "value"}
        control.write_text(json.dumps([entry]))
        with slots(held, 257):
            found = held.step([104], 0)
            assert all(isinstance(answer, Fault) and not answer.device_fault for answer in found)
            assert [answer.reason for answer in found][victim] == "host_error"
            assert [answer.reason for answer in found][1 - victim] == PEER_FAILED
            assert all(isinstance(answer, Logits) for answer in held.step([104], 0))


def test_another_job_on_one_rank_ends_both(tmp_path: Path) -> None:
    path = write_script(tmp_path, "s", turn("a", "b"))
    with ranks() as held:
        held.join(tmp_path / "store", collectives=False)
        scripted(held, path)
        with slots(held, 257):
            found = held.step([104], 0, rank1=3)
            # The second rank finds the position wrong by itself; the first is told.
            assert [answer.device_fault for answer in found] == [False, False]
            found = held.ask(
                lambda job, rank: jobs.ForwardLogits(job, H, S, b"h\0\0\0" if rank else b"i\0\0\0", 0, 0, 1)
            )
            assert [(answer.name, answer.device_fault) for answer in found] == [("tp_divergence", True)] * 2
            assert [worker.ended() for worker in held.workers] == [70, 70]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_load_that_one_rank_cannot_do(tmp_path: Path, victim: int) -> None:
    path = write_script(tmp_path, "s", turn("a"))
    with ranks() as held:
        held.join(tmp_path / "store", collectives=False)
        missing = str(tmp_path / "nowhere.json")
        found = held.ask(
            lambda job, rank: jobs.LoadScripted(job, H, missing if rank == victim else str(path), (), GROUP)
        )
        assert [answer.reason for answer in found][1 - victim] == PEER_FAILED
        assert found[victim].kind == "load"
        scripted(held, path)


def test_a_group_that_does_not_come_about(tmp_path: Path) -> None:
    with InProcessWorker() as worker:
        found = worker.ask(lambda job: jobs.GroupInit(job, GROUP, 0, 2, str(tmp_path), 0.2, False))
        assert isinstance(found, Fault)
        assert (found.name, found.device_fault) == ("tp_init_failed", False)
        assert isinstance(worker.ask(jobs.QueryVram), jobs.Vram)
