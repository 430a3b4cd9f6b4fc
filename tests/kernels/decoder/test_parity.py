"""Float32 logits against transformers for each dense architecture, whatever the split of the prompt."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernels.decoder.tiny import load, reference, run, some_ids, tiny

LENGTHS = (1, 2, 3, 4, 5, 63, 64, 65, 127, 130)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied-one-layer": ("Llama", {"tie_word_embeddings": True, "num_hidden_layers": 1}),
    "llama-biases-wide-heads": ("Llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 20}),
    "llama-one-kv-head": ("Llama", {"num_key_value_heads": 1, "num_attention_heads": 3, "head_dim": 16}),
    "qwen2": ("Qwen2", {"num_hidden_layers": 3}),
    "qwen2-tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen3-tied": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True, "num_key_value_heads": 4}),
}
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 500000.0,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0},
}


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    family, changes = MODELS[name]
    expected = tiny(tmp_path, family, **changes)
    model = load(tmp_path)
    ids = some_ids(max(LENGTHS))
    wanted = reference(expected, ids)
    for length in LENGTHS:
        for chunk in (length, 64, 7, 1):
            found = run(model, ids[:length], chunk)
            np.testing.assert_allclose(found, wanted[length - 1], atol=1e-4, rtol=0, err_msg=f"{length} by {chunk}")
    model.close()


@pytest.mark.parametrize("name", ROPES)
def test_every_rope_scaling_equals_transformers(name: str, tmp_path: Path) -> None:
    expected = tiny(tmp_path, "Llama", rope_parameters=ROPES[name], head_dim=16)
    model = load(tmp_path)
    ids = some_ids(200)
    wanted = reference(expected, ids)
    for length in (5, 200):
        np.testing.assert_allclose(run(model, ids[:length], 64), wanted[length - 1], atol=1e-4, rtol=0)
    model.close()


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_five_hundred_single_steps_stay_close(family: str, tmp_path: Path) -> None:
    expected = tiny(tmp_path, family)
    model = load(tmp_path)
    ids = some_ids(560)
    wanted = reference(expected, ids)
    run(model, ids[:60], 60)
    logits = np.zeros(model.vocab_size, dtype=np.float32)
    worst = 0.0
    for position in range(60, 560):
        model.forward(0, ids[position : position + 1], position, logits)
        worst = max(worst, float(np.abs(logits - wanted[position]).max()))
    assert worst < 1e-3
    model.close()


def test_the_answer_does_not_depend_on_what_ran_before(tmp_path: Path) -> None:
    tiny(tmp_path, "Qwen3")
    model = load(tmp_path)
    ids = some_ids(90)
    first = run(model, ids, 90)
    run(model, some_ids(333, 1), 100)
    run(model, some_ids(50, 2), 7, sequence=5)
    np.testing.assert_array_equal(run(model, ids, 90), first)
    model.close()


def test_two_sequences_do_not_disturb_each_other(tmp_path: Path) -> None:
    expected = tiny(tmp_path, "Llama")
    model = load(tmp_path)
    texts = {7: some_ids(40, 1), 8: some_ids(40, 2)}
    logits = np.zeros(model.vocab_size, dtype=np.float32)
    for position in range(40):
        for sequence, ids in texts.items():
            model.forward(sequence, ids[position : position + 1], position, logits)
    np.testing.assert_allclose(logits, reference(expected, texts[8])[-1], atol=1e-4, rtol=0)
    model.close()


def test_a_cut_sequence_goes_on_as_if_the_rest_had_never_been(tmp_path: Path) -> None:
    expected = tiny(tmp_path, "Llama")
    model = load(tmp_path)
    run(model, some_ids(100), 100)
    assert model.clear(0, keep=30) == 30
    ids = np.concatenate([some_ids(100)[:30], some_ids(20, 9)])
    logits = np.zeros(model.vocab_size, dtype=np.float32)
    model.forward(0, ids[30:], 30, logits)
    np.testing.assert_allclose(logits, reference(expected, ids)[-1], atol=1e-4, rtol=0)
    assert model.clear(0) == 0
    model.close()


@pytest.mark.parametrize("threads", [1, 3, 5])
def test_the_number_of_threads_does_not_matter(threads: int, tmp_path: Path) -> None:
    expected = tiny(tmp_path, "Qwen3")
    model = load(tmp_path, threads=threads)
    ids = some_ids(130)
    wanted = reference(expected, ids)[-1]
    for chunk in (130, 7):
        np.testing.assert_allclose(run(model, ids, chunk), wanted, atol=1e-4, rtol=0)
    model.close()
