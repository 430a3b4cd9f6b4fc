"""GGUF files of the hybrid: every convention of the usual converter, and its own files in eight forms."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuron.kernels.engine import DeviceModel, LoadSpec
from neuron.kernels.formats import in_situ
from neuron.kernels.load import load_model
from tests.kernels.decoder.tiny import load, run, some_ids
from tests.kernels.hybrid.converted import Convention, write
from tests.kernels.hybrid.oracle import log_probabilities, model_of
from tests.kernels.hybrid.tiny import reference, tiny_hybrid

FIXTURE = Path(__file__).parents[4] / "shared" / "fixtures" / "hybrid-gguf"
QUANTISED = ("Q2_K", "Q3_K_M", "Q4_0", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0")
pytestmark = pytest.mark.timeout(600)  # the first one may have to compile

HEADS: dict[str, dict[str, Any]] = {
    "three value heads a key head": {},
    "two of four": {"linear_num_key_heads": 4, "linear_num_value_heads": 8},
}

needs_fixture = pytest.mark.skipif(
    not FIXTURE.exists(), reason="the converter's files (26 MB) are not beside the clone"
)


def _gguf(path: Path, quant: str | None = None) -> DeviceModel:
    return load_model(LoadSpec("gguf", (path,), 1024, quant=quant), "cpu", lambda stage, fraction: None, threads=2)


def _run(path: Path, chunk: int, quant: str | None = None) -> np.ndarray:
    model = _gguf(path, quant)
    found = run(model, some_ids(100), chunk)
    model.close()
    return found


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("convention", Convention)
def test_each_convention_of_the_converter_is_undone(heads: str, convention: Convention, tmp_path: Path) -> None:
    """The whole file gives the original's logits; a file without this one convention must not."""
    original = tiny_hybrid(tmp_path, **HEADS[heads])
    wanted = reference(original, some_ids(100))[-1]
    whole = write(original, tmp_path / "whole.gguf")
    for chunk in (100, 7):
        np.testing.assert_allclose(_run(whole, chunk), wanted, atol=1e-4, rtol=0)
    left_out = _run(write(original, tmp_path / "part.gguf", without=convention), 100)
    # A decay of the wrong sign grows without bound, to NaN.
    assert not np.abs(left_out - wanted).max() < 0.1


def test_both_formats_give_the_same_logits(tmp_path: Path) -> None:
    original = tiny_hybrid(tmp_path, tie_word_embeddings=False)
    dense = load(tmp_path)
    wanted = run(dense, some_ids(100), 100)
    dense.close()
    np.testing.assert_allclose(_run(write(original, tmp_path / "x.gguf"), 100), wanted, atol=1e-4, rtol=0)


@needs_fixture
@pytest.mark.parametrize("quant", [None, "f32"])
@pytest.mark.parametrize("format", ["safetensors", "gguf"])
def test_the_converters_float_file_gives_the_reference(format: str, quant: str | None) -> None:
    known = json.loads((FIXTURE / "reference.json").read_text())
    ids = np.array(known["ids"], dtype=np.int32)
    name = "model.safetensors" if format == "safetensors" else "hybrid-2x-f32.gguf"
    spec = LoadSpec(format, (FIXTURE / name,), 512, FIXTURE / "config.json", quant)
    model = load_model(spec, "cpu", lambda stage, fraction: None, threads=2)
    wanted = log_probabilities(np.array(known["last_logits"]))
    for chunk in (90, 64, 7, 1):
        found = log_probabilities(run(model, ids, chunk))
        np.testing.assert_allclose(found, wanted, atol=1e-3, rtol=0, err_msg=f"chunks of {chunk}")
    model.close()


@needs_fixture
@pytest.mark.parametrize("kind", QUANTISED)
def test_a_quantised_file_is_its_own_dequantised_tensors(kind: str) -> None:
    path = FIXTURE / f"hybrid-2x-{kind}.gguf"
    ids = some_ids(90) + 300
    wanted = log_probabilities(reference(model_of(path, FIXTURE), ids)[-1])
    model = _gguf(path)
    for chunk in (90, 64, 7, 1):
        found = log_probabilities(run(model, ids, chunk))
        np.testing.assert_allclose(found, wanted, atol=1e-3, rtol=0, err_msg=f"chunks of {chunk}")
    model.close()


@needs_fixture
@pytest.mark.parametrize("kind", QUANTISED)
def test_a_large_model_of_the_kind_would_stay_near_them(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As stored, with int16 activations in single steps and bfloat16 products in prefill: these random weights give a
    flat, sensitive distribution."""
    path = FIXTURE / f"hybrid-2x-{kind}.gguf"
    ids = some_ids(90) + 300
    exact = _gguf(path)
    monkeypatch.setattr(in_situ, "SMALL_WEIGHTS", 0)
    stored = _gguf(path)
    wanted = log_probabilities(run(exact, ids, 90))
    np.testing.assert_allclose(log_probabilities(run(stored, ids, 1)), wanted, atol=5e-3, rtol=0)
    found = log_probabilities(run(stored, ids, 90))
    assert float(np.sum(np.exp(wanted) * (wanted - found))) < 2e-3
    exact.close()
    stored.close()
