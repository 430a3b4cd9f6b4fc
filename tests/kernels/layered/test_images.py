"""Images through the layered engine, alone and over ranks, against transformers: splicing, chunks, M-RoPE, decode."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuron.kernels.engine import SeeingModel
from neuron.kernels.layered.load import EngineOptions
from neuron.kernels.layered.model import SeeingLayeredModel
from neuron.kernels.layered.placement import Kernels
from tests.kernels.layered.families import make
from tests.kernels.layered.ranks import RankedModel, load
from tests.kernels.layered.recorders import Again
from tests.kernels.vision.test_model import Conversation, reference
from tests.kernels.vision.tiny import tiny_vision

pytestmark = pytest.mark.timeout(300)
TEXT = {"linear_num_value_heads": 8, "layer_types": ["linear_attention", "full_attention"], "num_hidden_layers": 2}
TALKS = (Conversation([5, 9], [(6, 10)], seed=1), Conversation([7, 30, 6], [(14, 4), (4, 6)], seed=3))
MODELS: dict[str, Any] = {
    "compiled": lambda folder: load(folder),
    "tensors": lambda folder: load(folder, options=EngineOptions(Kernels.TENSORS, Again())),
    "two ranks": lambda folder: RankedModel(folder, 2),
    "four ranks": lambda folder: RankedModel(folder, 4),
}


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("seeing")
    return folder, tiny_vision(folder, text=TEXT)


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest, oracle: tuple[Path, Any]) -> Iterator[tuple[Any, Any]]:
    folder, wanted = oracle
    model = MODELS[request.param](folder)
    yield wanted, model
    model.close()


@pytest.mark.parametrize("talk", TALKS)
def test_prompts_and_steps_equal_transformers(pair: tuple[Any, Any], talk: Conversation) -> None:
    wanted, model = pair
    tokens, rows = reference(wanted, talk, steps=8)
    for chunk in (7, 64, 1000):
        logits = talk.run(model, chunk)
        np.testing.assert_allclose(logits, rows[0], atol=1e-4, rtol=0)
    for index, token in enumerate(tokens):
        model.forward(0, np.array([token], dtype=np.int32), len(talk.ids) + index, logits)
        np.testing.assert_allclose(logits, rows[index + 1], atol=1e-4, rtol=0)


def test_images_are_given_up_with_their_sequence(pair: tuple[Any, Any]) -> None:
    _, model = pair
    talk = TALKS[1]
    talk.encode(model, 3)
    assert model.held_images == 2
    model.clear(3)
    assert model.held_images == 0
    with pytest.raises(ValueError, match="not encoded"):
        model.forward_with_images(3, talk.ids, 0, None, tuple(talk.spans), talk.positions, 0)


def test_only_a_model_with_a_tower_sees(oracle: tuple[Path, Any], tmp_path: Path) -> None:
    make(tmp_path, "llama")
    blind, seeing = load(tmp_path), load(oracle[0])
    assert not isinstance(blind, SeeingModel)
    assert isinstance(seeing, SeeingModel)
    assert isinstance(seeing, SeeingLayeredModel)
    assert "vision tower of 2 blocks" in seeing.summary
    blind.close()
    seeing.close()
