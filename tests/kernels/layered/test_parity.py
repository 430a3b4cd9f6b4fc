"""One CPU through the layered engine: logits of transformers and of the compiled engine, in float32 and bfloat16."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from neuron.kernels.layered.load import EngineOptions
from neuron.kernels.layered.placement import Kernels
from neuron.kernels.layered.weights import A_B, GATE_UP, GATED_QUERY, QKV_Z
from tests.kernels.decoder import tiny as compiled
from tests.kernels.decoder.tiny import run, some_ids
from tests.kernels.layered.families import LENGTHS, MODELS, check_lengths, check_steps, make, wanted
from tests.kernels.layered.ranks import load, relative

pytestmark = pytest.mark.timeout(300)  # the first one may have to compile


@pytest.mark.parametrize("kernels", [Kernels.COMPILED, Kernels.TENSORS])
@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_transformers(name: str, kernels: Kernels, tmp_path: Path) -> None:
    rows = wanted(make(tmp_path, name), some_ids(max(LENGTHS)))
    model = load(tmp_path, options=EngineOptions(kernels))
    check_lengths(model, rows)
    check_steps(model, rows, 70)
    model.close()


@pytest.mark.parametrize("name", ["llama", "hybrid"])
def test_the_compiled_engine_says_the_same(name: str, tmp_path: Path) -> None:
    make(tmp_path, name)
    ids = some_ids(600)
    layered, other = load(tmp_path), compiled.load(tmp_path, threads=1)
    assert (layered.vocab_size, layered.context_length) == (other.vocab_size, other.context_length)
    assert layered.memory.kv_per_token == other.memory.kv_per_token
    assert layered.memory.state == other.memory.state
    for chunk in (600, 100):
        np.testing.assert_allclose(run(layered, ids, chunk), run(other, ids, chunk), atol=1e-4, rtol=0)
    layered.close()
    other.close()


@pytest.mark.parametrize("kernels", [Kernels.COMPILED, Kernels.TENSORS])
def test_bfloat16_weights_keep_a_float32_residual_and_state(kernels: Kernels, tmp_path: Path) -> None:
    rows = wanted(make(tmp_path, "hybrid", dtype=torch.bfloat16), some_ids(100))
    model = load(tmp_path, quant="bf16", options=EngineOptions(kernels))
    assert "products bfloat16" in model.summary
    assert model.memory.state == 4 * (8 * 16 * 24 + (2 * 2 * 16 + 8 * 24) * 4)
    for chunk in (100, 7):
        assert relative(run(model, some_ids(100), chunk), rows[-1]) < 4e-2
    model.close()


def test_bfloat16_made_float32_is_exact(tmp_path: Path) -> None:
    make(tmp_path, "hybrid", dtype=torch.bfloat16)
    model, other = load(tmp_path, quant="f32"), compiled.load(tmp_path, quant="f32", threads=1)
    assert "products float32, KV float32" in model.summary
    ids = some_ids(100)
    np.testing.assert_allclose(run(model, ids, 100), run(other, ids, 100), atol=1e-4, rtol=0)
    model.close()
    other.close()


def test_few_rows_on_a_cpu_are_rounded_nowhere_but_in_the_cache(tmp_path: Path) -> None:
    rows = wanted(make(tmp_path, "hybrid", dtype=torch.bfloat16), some_ids(100))
    model = load(tmp_path, quant="bf16")
    np.testing.assert_allclose(run(model, some_ids(100), 7), rows[-1], atol=2e-2, rtol=0)
    model.close()


def test_float16_weights_become_the_products_type(tmp_path: Path) -> None:
    rows = wanted(make(tmp_path, "llama", dtype=torch.float16), some_ids(20))
    model = load(tmp_path, quant="f16")
    assert relative(run(model, some_ids(20), 20), rows[-1]) < 4e-2
    model.close()


@pytest.mark.parametrize(("name", "groups"), [("llama", [("q", "k", "v"), ("gate", "up")]), ("hybrid", None)])
def test_matrices_of_one_input_lie_together_once(name: str, groups: Any, tmp_path: Path) -> None:
    make(tmp_path, name)
    apart, together = load(tmp_path), load(tmp_path, options=EngineOptions(Kernels.TENSORS))
    assert apart.memory.weights == together.memory.weights
    layers = together._running._stack._weights.layers
    gated: list[Any] = [[GATE_UP, QKV_Z, A_B], [GATED_QUERY, GATE_UP]]
    wanted_groups = gated if groups is None else [groups, groups]
    assert [sorted(layer.joined) for layer in layers] == [sorted(each) for each in wanted_groups]
    for layer in layers:
        for roles, joined in layer.joined.items():
            memory = joined._weight.untyped_storage().data_ptr()  # type: ignore[attr-defined]
            for role in roles:
                assert layer.linears[role]._weight.untyped_storage().data_ptr() == memory  # type: ignore[attr-defined]
    apart.close()
    together.close()


def test_no_second_copy_is_held_while_weights_are_read(tmp_path: Path) -> None:
    """The most that arrays take during a load is the model and about its largest matrix."""
    make(tmp_path, "llama", dtype=torch.bfloat16, hidden_size=256, intermediate_size=1024, num_hidden_layers=6)
    load(tmp_path, quant="bf16").close()  # what libraries keep for themselves comes before
    tracemalloc.start()
    model = load(tmp_path, quant="bf16")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    largest = 1024 * 256 * 2
    assert peak < model.memory.weights + 3 * largest
    model.close()


def test_what_cannot_be_is_refused_with_nothing_changed(tmp_path: Path) -> None:
    make(tmp_path, "hybrid")
    model = load(tmp_path, max_context=64)
    ids, logits = some_ids(10), np.zeros(model.vocab_size, dtype=np.float32)
    model.forward(0, ids, 0, None)
    one = ids[:1]
    wrong: list[tuple[int, Any, int, Any]] = [
        (0, ids[:0], 10, None),
        (0, np.array([97], dtype=np.int32), 10, None),
        (0, np.array([-1], dtype=np.int32), 10, None),
        (0, one, 9, None),
        (1, one, 3, None),
        (0, some_ids(60), 10, None),
        (0, one, 10, logits[:-1]),
        (0, one, 10, logits.astype(np.float64)),
    ]
    for arguments in wrong:
        with pytest.raises(ValueError, match=r"tok|posit|logits|vocab"):
            model.forward(*arguments)
    with pytest.raises(ValueError, match="holds nothing"):
        model.save_rows(5, 1, 0, 1)
    assert model.length(0) == 10
    model.forward(0, one, 10, logits)
    np.testing.assert_array_equal(logits, run(model, np.concatenate([ids, one]), 10))
    model.close()


def test_the_answer_does_not_depend_on_what_ran_before(tmp_path: Path) -> None:
    make(tmp_path, "hybrid")
    model = load(tmp_path)
    ids = some_ids(90)
    first = run(model, ids, 90)
    run(model, some_ids(333, 1), 100)
    run(model, some_ids(50, 2), 7, sequence=5)
    np.testing.assert_array_equal(run(model, ids, 90), first)
    np.testing.assert_array_equal(run(model, ids[:1], 1, sequence=9), run(model, ids[:1], 1))
    model.close()
