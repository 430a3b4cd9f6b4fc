"""The layered engine on hardware (`pytest -m gpu`): tiny models against transformers, steps, prefixes, images."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from neuron.kernels.layered.graph import StepState
from neuron.kernels.layered.model import LayeredModel
from neuron.kernels.load import load_model
from tests.kernels.decoder.tiny import run, some_ids
from tests.kernels.layered.families import MODELS, check_lengths, check_steps, make, wanted
from tests.kernels.layered.ranks import load, relative, spec_of
from tests.kernels.vision.test_model import Conversation, reference
from tests.kernels.vision.tiny import tiny_vision

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def device() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device in this machine")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    torch.cuda.empty_cache()


def on_gpu(folder: Path, quant: str | None = "f32", max_context: int = 1024) -> LayeredModel:
    model = load_model(spec_of(folder, quant, max_context), "cuda:0", lambda stage, fraction: None)
    assert isinstance(model, LayeredModel)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_transformers(name: str, folder: Path) -> None:
    rows = wanted(make(folder, name), some_ids(130))
    model = on_gpu(folder)
    assert "not recorded" not in model.summary
    check_lengths(model, rows)
    check_steps(model, rows, 70)
    held = model._sequences[0].step
    assert held is not None
    assert held.graphed.state is StepState.RECORDED
    model.close()


@pytest.mark.parametrize("quant", ["bf16", "q8_0", "q4_k", "q6_k"])
def test_rounded_products_stay_close(quant: str, folder: Path) -> None:
    make(folder, "hybrid", hidden_size=256, intermediate_size=512, initializer_range=0.05)
    here, there = load(folder, quant=quant), on_gpu(folder, quant)
    for chunk in (90, 7, 1):
        assert relative(run(there, some_ids(90), chunk), run(here, some_ids(90), 1)) < 5e-2
    here.close()
    there.close()


def test_prefixes_and_cuts(folder: Path) -> None:
    rows = wanted(make(folder, "hybrid"), some_ids(60))
    model = on_gpu(folder)
    ids, logits = some_ids(60), np.zeros(model.vocab_size, dtype=np.float32)
    model.forward(0, ids[:40], 0, None)
    assert model.save_rows(0, 1, 0, 24) + model.save_rows(0, 2, 24, 40) + model.save_state(0, 3) > 0
    model.clear(0)
    run(model, some_ids(50, 7), 50)
    model.clear(0)
    assert model.restore_prefix(0, 0, [1, 2], 3) == 40
    for position in range(40, 60):
        model.forward(0, ids[position : position + 1], position, logits)
        np.testing.assert_allclose(logits, rows[position], atol=1e-4, rtol=0)
    model.close()


def test_images(folder: Path) -> None:
    talk = Conversation([7, 30, 6], [(14, 4), (4, 6)], seed=3)
    tokens, rows = reference(tiny_vision(folder), talk, steps=4)
    model = on_gpu(folder)
    for chunk in (7, 1000):
        logits = talk.run(model, chunk)  # type: ignore[arg-type]
        np.testing.assert_allclose(logits, rows[0], atol=2e-4, rtol=0)
    for index, token in enumerate(tokens):
        model.forward(0, np.array([token], dtype=np.int32), len(talk.ids) + index, logits)
        np.testing.assert_allclose(logits, rows[index + 1], atol=2e-4, rtol=0)
    model.close()


def test_memory_goes_back(folder: Path) -> None:
    make(folder, "hybrid", hidden_size=256, intermediate_size=512)
    on_gpu(folder).close()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    model = on_gpu(folder)
    held = torch.cuda.memory_allocated() - before
    assert held > model.memory.weights
    run(model, some_ids(200), 200)
    model.close()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() - before < held // 10
