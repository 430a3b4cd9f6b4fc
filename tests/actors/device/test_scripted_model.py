"""The scripted backend through the worker's loop (level 1): tokens, turns, padding, host faults."""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuron.actors.device import jobs
from neuron.actors.device.jobs import ArchHandle, Fault
from neuron.actors.scripted import ScriptVocabulary, read_script
from tests.harness.level1 import Driver, InProcessWorker
from tests.harness.scripts import EOS, fault, turn, write_script

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def worker() -> Iterator[InProcessWorker]:
    with InProcessWorker() as held:
        yield held


@pytest.fixture
def driver_of(worker: InProcessWorker, tmp_path: Path) -> Iterator[Any]:
    made: list[Driver] = []

    def make(*turns: dict[str, Any], **keys: Any) -> Driver:
        path = write_script(tmp_path, f"script{len(made)}", *turns, **keys)
        made.append(Driver(worker, str(path), handle=len(made) + 1))
        return made[-1]

    yield make
    for driver in made:
        driver.close()


def _load_of(path: str, job: int) -> jobs.Job:
    return jobs.LoadScripted(job, ArchHandle(1), path)


def _text(driver: Driver, path: Path, prompt: bytes, limit: int = 8) -> bytes:
    vocabulary = ScriptVocabulary(read_script(path))
    ids = driver.generate(prompt, limit)
    assert not isinstance(ids, Fault), ids
    return vocabulary.decode(ids)


def test_spells_the_script_then_eos(driver_of: Any, tmp_path: Path) -> None:
    driver = driver_of(turn("The ", "cat", {"bytes": "f09f8cab"}, EOS))
    assert _text(driver, tmp_path / "script0.json", b"hi", 4) == "The cat\U0001f32b<|im_end|>".encode()


def test_a_list_without_eos_is_followed_by_eos(driver_of: Any, tmp_path: Path) -> None:
    driver = driver_of(turn("x"))
    assert _text(driver, tmp_path / "script0.json", b"hi", 3) == b"x<|im_end|><|im_end|>"


def test_repeat(driver_of: Any, tmp_path: Path) -> None:
    driver = driver_of(turn("a", "bc", repeat=True))
    assert _text(driver, tmp_path / "script0.json", b"hi", 5) == b"abcabca"


def test_first_match_wins_and_none_answers_nothing(driver_of: Any, tmp_path: Path) -> None:
    driver = driver_of(turn("1", when="one"), turn("2", when="two"), turn("one again", when="one"))
    path = tmp_path / "script0.json"
    assert _text(driver, path, b"say two", 1) == b"2"
    assert _text(driver, path, b"two and one", 1) == b"1"
    assert _text(driver, path, b"three", 1) == b"<|im_end|>"


def test_when_is_found_across_chunks_and_in_unicode(driver_of: Any) -> None:
    driver = driver_of(turn("yes", when="Größe 7"), turn("no"))
    prompt = "die Größe 7 bitte".encode()
    for cut in range(1, len(prompt)):
        driver.clear()
        assert driver.forward(prompt[:cut], 0, slot=None) is None
        row = driver.forward(prompt[cut:], cut)
        assert isinstance(row, np.ndarray)
        assert int(row.argmax()) == 257  # 256 is eos


def test_the_generated_text_does_not_choose_the_turn(driver_of: Any, tmp_path: Path) -> None:
    driver = driver_of(turn("x", when="magic"), turn("magic", " word"))
    assert _text(driver, tmp_path / "script0.json", b"hi", 3) == b"magic word<|im_end|>"


@pytest.mark.parametrize("vocab_size", [300, 248_320])
def test_rows_are_padded(driver_of: Any, vocab_size: int) -> None:
    driver = driver_of(turn("ab"), vocab_size=vocab_size)
    assert driver.loaded.vocab_size == vocab_size
    row = driver.forward(b"hi", 0)
    assert row.shape == (vocab_size,)
    assert int(row.argmax()) == 257


def test_no_legal_sampling_parameter_changes_the_choice(driver_of: Any) -> None:
    """Worst case of all: 10,000 repeats at the strongest penalties, the least favourable bias, a high temperature."""
    driver = driver_of(turn("ab", repeat=True))
    row = driver.forward(b"hi", 0).astype(np.float64)
    winner = int(row.argmax())
    row[winner] = row[winner] / 2.0 - 10_000 * 2.0 - 2.0 - 100.0
    others = np.delete(row, winner) + 100.0
    assert (row[winner] - others.max()) / 2.0 > 1000


def test_positions_and_ids_are_checked(driver_of: Any) -> None:
    driver = driver_of(turn("ab"), context_length=8)
    for tokens, position in (([], 0), ([1], 5), ([300], 0), ([-1], 0), (list(range(9)), 0)):
        found = driver.forward(tokens, position)
        assert isinstance(found, Fault)
        assert (found.kind, found.name, found.device_fault) == ("host", "internal_error", False)
        driver.clear()
    assert isinstance(driver.forward(b"12345678", 0), np.ndarray)


def test_clear_keeps_a_prefix(driver_of: Any) -> None:
    driver = driver_of(turn("x", when="abc"), turn("y"))
    driver.forward(b"abcd", 0)
    assert driver.clear(keep=3) == 3
    row = driver.forward(b"z", 3)
    assert int(row.argmax()) == ord("x")
    assert driver.clear() == 0


def test_sequences_are_apart(driver_of: Any) -> None:
    driver = driver_of(turn("x", when="a"), turn("y"))
    driver.forward(b"a", 0, slot=None, sequence=1)
    assert int(driver.forward(b"b", 0, sequence=2).argmax()) == ord("y")
    assert int(driver.forward(b"b", 1, sequence=1).argmax()) == ord("x")


def test_a_host_fault_fails_one_request(driver_of: Any) -> None:
    driver = driver_of(turn("a", "b", "c", fault=fault("host", at=1, text="no good")))
    first = driver.generate(b"hi", 3)
    assert isinstance(first, Fault)
    assert (first.kind, first.name, first.device_fault, first.phase) == ("host", "internal_error", False, "decode")
    assert "no good" in first.message
    assert first.public == ""
    assert driver.generate(b"hi", 3) == [ord("a"), ord("b"), ord("c")]


def test_nan(driver_of: Any) -> None:
    driver = driver_of(turn("a", "b", fault=fault("nan", at=1, times=2)))
    for _ in range(2):
        found = driver.generate(b"hi", 2)
        assert isinstance(found, Fault)
        assert (found.kind, found.name, found.device_fault) == ("nan", "nan_logits", False)
    assert driver.generate(b"hi", 2) == [ord("a"), ord("b")]


def test_out_of_memory_with_a_good_probe(driver_of: Any) -> None:
    driver = driver_of(turn("a", fault=fault("oom", phase="prefill")))
    found = driver.generate(b"hi", 1)
    assert isinstance(found, Fault)
    assert (found.kind, found.name, found.device_fault, found.phase) == ("oom", "insufficient_vram", False, "prefill")
    assert driver.generate(b"hi", 1) == [ord("a")]


def test_a_prefill_fault_fires_at_its_chunk_or_at_the_last(driver_of: Any) -> None:
    driver = driver_of(turn("a", fault=fault("host", at=1, phase="prefill", times=2)))
    assert driver.forward(b"aa", 0, slot=None) is None
    assert isinstance(driver.forward(b"aa", 2, slot=None), Fault)
    driver.clear()
    assert isinstance(driver.forward(b"aa", 0), Fault)  # one chunk only
    assert driver.generate(b"hi", 1) == [ord("a")]


def test_a_device_fault_ends_the_loop(worker: InProcessWorker, driver_of: Any) -> None:
    text = "CUDA error: device-side assert triggered"
    driver = driver_of(turn("a", fault=fault("device", at=0, text=text)))
    found = driver.forward(b"hi", 0)
    assert isinstance(found, Fault)
    assert (found.kind, found.code, found.name, found.device_fault) == ("device", 710, "device_fault", True)
    assert (found.reason, text in found.message) == ("device_assert", True)
    assert worker.ended() == 70


def test_times_are_counted_across_loads_of_the_same_content(worker: InProcessWorker, tmp_path: Path) -> None:
    path = write_script(tmp_path, "a", turn("a", fault=fault("host", phase="load", times=2)))

    def load(handle: int, fired: tuple[tuple[str, int, int], ...]) -> jobs.Reply:
        return worker.ask(lambda job: jobs.LoadScripted(job, ArchHandle(handle), str(path), fired))

    assert isinstance(load(1, ()), Fault)
    event = worker.unasked[-1]
    assert isinstance(event, jobs.ScriptFaultFired)
    assert isinstance(load(1, ((event.digest, event.turn, 1),)), Fault)
    assert isinstance(load(1, ((event.digest, event.turn, 2),)), jobs.Loaded)
    assert isinstance(load(2, (("another content", event.turn, 2),)), Fault)


def test_a_bad_script_is_a_load_error(worker: InProcessWorker, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(b'{"turns": 1}')
    for place in (path, tmp_path / "absent.json"):
        found = worker.ask(partial(_load_of, str(place)))
        assert isinstance(found, Fault)
        assert (found.kind, found.name, found.device_fault) == ("load", "invalid_model_config", False)
        assert str(tmp_path) not in found.public
        assert found.public


def test_delays_are_taken_before_each_token_and_for_each_prompt_token(
    driver_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    driver = driver_of(turn("a", "b", delay_ms=250, prefill_ms_per_token=10))
    driver.forward(b"12345", 0, slot=None)
    driver.forward(b"678", 5)
    driver.forward(b"a", 8)
    assert slept == [0.05, 0.03, 0.25, 0.25]


def test_progress_is_reported(driver_of: Any, worker: InProcessWorker) -> None:
    driver_of(turn("a"))
    assert worker.progress[0].stage == "read"
    assert worker.progress[-1].fraction == 1.0
