"""Float32 logits of the hybrid against transformers, whatever the shape and the split of the prompt."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernels.decoder.tiny import load, run, some_ids
from tests.kernels.hybrid.tiny import reference, tiny_conditional, tiny_hybrid

pytestmark = pytest.mark.timeout(600)  # the first one may have to compile

LENGTHS = (1, 2, 3, 4, 5, 63, 64, 65, 127, 130)
LINEAR, FULL = "linear_attention", "full_attention"
MODELS: dict[str, dict[str, Any]] = {
    "mixed, three value heads a key head": {},
    "one linear layer": {"layer_types": [LINEAR]},
    "one full layer": {"layer_types": [FULL]},
    "tied, equal heads": {
        "tie_word_embeddings": True,
        "linear_num_value_heads": 2,
        "layer_types": [LINEAR, LINEAR, LINEAR, FULL],
    },
    "widths of 64 and 32, three full layers": {
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 64,
        "layer_types": [FULL, LINEAR, FULL, LINEAR, FULL],
    },
    "biases, of the gate too": {"attention_bias": True, "layer_types": [LINEAR, FULL]},
    "one kv head, convolution of two": {
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "linear_conv_kernel_dim": 2,
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    expected = tiny_hybrid(tmp_path, **MODELS[name])
    model = load(tmp_path)
    ids = some_ids(max(LENGTHS))
    wanted = reference(expected, ids)
    for length in LENGTHS:
        for chunk in (length, 64, 7, 1):
            found = run(model, ids[:length], chunk)
            np.testing.assert_allclose(found, wanted[length - 1], atol=1e-4, rtol=0, err_msg=f"{length} by {chunk}")
    model.close()


def test_the_text_side_of_the_vision_model_is_the_same_model(tmp_path: Path) -> None:
    """Names below model.language_model, settings below text_config; mtp.* and model.visual.* are passed over."""
    expected = tiny_conditional(tmp_path)
    model = load(tmp_path)
    ids = some_ids(70)
    np.testing.assert_allclose(run(model, ids, 70), reference(expected, ids)[-1], atol=1e-4, rtol=0)
    model.close()


def test_five_hundred_single_steps_stay_close(tmp_path: Path) -> None:
    expected = tiny_hybrid(tmp_path)
    model = load(tmp_path)
    ids = some_ids(570)
    wanted = reference(expected, ids)
    run(model, ids[:70], 70)
    logits = np.zeros(model.vocab_size, dtype=np.float32)
    worst = 0.0
    for position in range(70, 570):
        model.forward(0, ids[position : position + 1], position, logits)
        worst = max(worst, float(np.abs(logits - wanted[position]).max()))
    assert worst < 1e-3
    model.close()


def test_a_long_prompt_in_one_call_equals_many(tmp_path: Path) -> None:
    """600 tokens: a pass of prefill ends at 512, the next begins with a state."""
    expected = tiny_hybrid(tmp_path)
    model = load(tmp_path)
    ids = some_ids(600)
    wanted = reference(expected, ids)[-1]
    for chunk in (600, 100, 17):
        np.testing.assert_allclose(run(model, ids, chunk), wanted, atol=1e-4, rtol=0)
    model.close()


def test_the_answer_does_not_depend_on_what_ran_before(tmp_path: Path) -> None:
    tiny_hybrid(tmp_path)
    model = load(tmp_path)
    ids = some_ids(90)
    first = run(model, ids, 90)
    run(model, some_ids(333, 1), 100)
    run(model, some_ids(50, 2), 7, sequence=5)
    np.testing.assert_array_equal(run(model, ids, 90), first)
    np.testing.assert_array_equal(run(model, ids[:1], 1, sequence=9), run(model, ids[:1], 1))
    model.close()


def test_two_sequences_do_not_disturb_each_other(tmp_path: Path) -> None:
    expected = tiny_hybrid(tmp_path)
    model = load(tmp_path)
    texts = {7: some_ids(40, 1), 8: some_ids(40, 2)}
    logits = np.zeros(model.vocab_size, dtype=np.float32)
    for position in range(40):
        for sequence, ids in texts.items():
            model.forward(sequence, ids[position : position + 1], position, logits)
    np.testing.assert_allclose(logits, reference(expected, texts[8])[-1], atol=1e-4, rtol=0)
    model.close()


@pytest.mark.parametrize("threads", [1, 3, 5])
def test_the_number_of_threads_does_not_matter(threads: int, tmp_path: Path) -> None:
    expected = tiny_hybrid(tmp_path)
    model = load(tmp_path, threads=threads)
    ids = some_ids(130)
    wanted = reference(expected, ids)[-1]
    for chunk in (130, 30, 7):
        np.testing.assert_allclose(run(model, ids, chunk), wanted, atol=1e-4, rtol=0)
    model.close()


def test_states_are_float32_in_a_bfloat16_model(tmp_path: Path) -> None:
    import torch

    expected = tiny_hybrid(tmp_path, dtype=torch.bfloat16)
    model = load(tmp_path, quant=None)
    assert model.memory.state == 2 * 4 * (6 * 16 * 24 + (2 * 2 * 16 + 6 * 24) * 4)
    ids = some_ids(100)
    # Single steps keep activations in float32: only the float16 KV rows round.
    np.testing.assert_allclose(run(model, ids, 1), reference(expected, ids)[-1], atol=2e-2, rtol=0)
    model.close()
