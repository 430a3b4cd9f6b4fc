"""Steps between static buffers: warm, recorded, replayed for other positions over memory that never moves."""

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuron.kernels.layered.graph import GraphedStep, StepState
from neuron.kernels.layered.load import EngineOptions
from neuron.kernels.layered.placement import Kernels
from neuron.kernels.layered.weights import GATE_UP
from tests.kernels.decoder.tiny import run, some_ids
from tests.kernels.layered.families import STEPS, check_lengths, check_steps, make, wanted
from tests.kernels.layered.ranks import RankedModel, load
from tests.kernels.layered.recorders import Again, Refuses

pytestmark = pytest.mark.timeout(300)


def test_a_step_is_run_recorded_and_replayed() -> None:
    done: list[int] = []
    recorder = Again()
    step = GraphedStep(lambda: done.append(1), recorder)
    seen = []
    for _ in range(4):
        seen.append(step.state)
        step.run()
    assert seen == [StepState.COLD, StepState.WARM, StepState.RECORDED, StepState.RECORDED]
    assert (len(done), recorder.recorded, recorder.replayed) == (4, 1, 3)


def test_what_cannot_be_recorded_runs_as_it_is_and_says_why() -> None:
    done: list[int] = []
    step = GraphedStep(lambda: done.append(1), Refuses())
    for _ in range(4):
        step.run()
    assert step.state is StepState.EAGER
    assert len(done) == 4
    assert step.reason == "operation not permitted when stream is capturing"


def test_without_a_recorder_nothing_is_recorded() -> None:
    step = GraphedStep(lambda: None, None)
    step.run()
    assert step.state is StepState.EAGER
    assert step.reason is None


@pytest.mark.parametrize("name", ["llama", "qwen3", "hybrid", "hybrid-tied"])
def test_replayed_steps_equal_transformers(name: str, tmp_path: Path) -> None:
    """One recording, made in the load's warm-up, serves every position and every text on that memory."""
    recorder = Again()
    rows = wanted(make(tmp_path, name), some_ids(130))
    model = load(tmp_path, options=EngineOptions(Kernels.TENSORS, recorder))
    assert (recorder.recorded, recorder.replayed) == (1, 2)
    assert "not recorded" not in model.summary
    check_lengths(model, rows)
    before = recorder.replayed
    check_steps(model, rows, 30)
    assert recorder.recorded == 1
    assert recorder.replayed == before + STEPS
    model.close()


def test_memory_never_moves_under_a_recording(tmp_path: Path) -> None:
    """Emptied, cut back, put together anew and filled to the last position, a sequence keeps its memory."""
    recorder = Again()
    rows = wanted(make(tmp_path, "llama"), some_ids(130))
    model = load(tmp_path, max_context=130, options=EngineOptions(Kernels.TENSORS, recorder))
    place = model._free[0].rows.rows.data_ptr()
    np.testing.assert_allclose(run(model, some_ids(130), 100), rows[-1], atol=1e-4, rtol=0)
    model.save_rows(0, 1, 0, 50)
    model.clear(0, 20)
    model.restore_prefix(0, 20, [1], 0)
    logits = np.zeros(model.vocab_size, dtype=np.float32)
    for position in range(50, 130):
        model.forward(0, some_ids(130)[position : position + 1], position, logits)
        np.testing.assert_allclose(logits, rows[position], atol=1e-4, rtol=0)
    assert model._sequences[0].rows.rows.data_ptr() == place
    assert recorder.recorded == 1
    model.close()


def test_ranks_begin_each_recorded_step_together(tmp_path: Path) -> None:
    """A replay calls no collective on a GPU: every step that may be one asks the group first."""
    rows = wanted(make(tmp_path, "hybrid"), some_ids(40))
    model = RankedModel(tmp_path, 2, options=EngineOptions(Kernels.TENSORS, Again()))
    run(model, some_ids(40)[:30], 30)
    for calls in model.shared.calls:
        calls.clear()
    logits = np.zeros(model.vocab_size, dtype=np.float32)
    for position in range(30, 40):
        model.forward(0, some_ids(40)[position : position + 1], position, logits)
        np.testing.assert_allclose(logits, rows[position], atol=1e-4, rtol=0)
    names = [name for name, _ in model.shared.calls[1]]
    assert names == (["begin"] + ["all_reduce"] * 4 + ["gather"]) * 10
    model.close()


def test_two_sequences_have_recordings_of_their_own(tmp_path: Path) -> None:
    recorder = Again()
    expected = make(tmp_path, "llama")
    model = load(tmp_path, options=EngineOptions(Kernels.TENSORS, recorder))
    texts = {7: some_ids(40, 1), 8: some_ids(40, 2)}
    logits = np.zeros(model.vocab_size, dtype=np.float32)
    for position in range(40):
        for sequence, ids in texts.items():
            model.forward(sequence, ids[position : position + 1], position, logits)
    np.testing.assert_allclose(logits, wanted(expected, texts[8])[-1], atol=1e-4, rtol=0)
    assert recorder.recorded == 2
    model.close()


def test_a_closed_model_is_gone_without_a_collection(tmp_path: Path) -> None:
    """A device's memory is wanted back at once, whatever still refers to the model itself."""
    make(tmp_path, "hybrid")
    model = load(tmp_path, options=EngineOptions(Kernels.TENSORS, Again()))
    run(model, some_ids(20), 7)
    held = model._sequences[0]
    assert held.state is not None
    gone: list[weakref.ref[Any]] = [
        weakref.ref(model._running._stack._weights.norm),
        weakref.ref(model._running._stack._weights.layers[0].joined[GATE_UP]),
        weakref.ref(held.state.data),
    ]
    del held
    gc.collect()
    gc.disable()
    try:
        model.close()
        assert [reference() for reference in gone] == [None, None, None]
    finally:
        gc.enable()


def test_the_summary_says_why_steps_are_not_recorded(tmp_path: Path) -> None:
    rows = wanted(make(tmp_path, "llama"), some_ids(30))
    model = load(tmp_path, options=EngineOptions(Kernels.TENSORS, Refuses()))
    assert model.summary.endswith("steps not recorded: operation not permitted when stream is capturing")
    np.testing.assert_allclose(run(model, some_ids(30), 1), rows[-1], atol=1e-4, rtol=0)
    model.close()
