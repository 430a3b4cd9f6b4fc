"""load_model: what is stored decides the arithmetic, files are let go, mistakes are typed, memory comes back."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from neuron.kernels.engine import LoadSpec
from neuron.kernels.errors import LoadError
from neuron.kernels.formats.errors import FormatError
from neuron.kernels.load import load_model
from tests.kernels.decoder.tiny import VOCAB, Floats, load, reference, run, some_ids, tiny


def relative(found: Floats, wanted: Floats) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_stored_floats_are_multiplied_as_they_are(dtype: torch.dtype, tmp_path: Path) -> None:
    expected = tiny(tmp_path, "Qwen3", dtype=dtype)
    model = load(tmp_path, quant=None)
    ids = some_ids(40)
    wanted = reference(expected, ids)[-1]
    # Single steps round only the cache (float16); prefill rounds to bfloat16.
    assert relative(run(model, ids, 1), wanted) < 2e-3
    assert relative(run(model, ids, 40), wanted) < 5e-2
    model.close()


@pytest.mark.parametrize(("quant", "limit"), [("bf16", 3e-2), ("f16", 3e-3), ("F32", 1e-5)])
def test_weights_can_be_stored_in_another_float_type(quant: str, limit: float, tmp_path: Path) -> None:
    expected = tiny(tmp_path, "Llama")
    model = load(tmp_path, quant=quant)
    ids = some_ids(20)
    assert relative(run(model, ids, 1), reference(expected, ids)[-1]) < limit
    full = load(tmp_path, quant="f32")
    assert (model.memory.weights < full.memory.weights) == (quant != "F32")
    model.close()
    full.close()


def test_fp8_blocks_are_expanded_with_their_scales(tmp_path: Path) -> None:
    expected = tiny(tmp_path, "Llama", hidden_size=160, intermediate_size=192, initializer_range=0.05)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in [name for name in tensors if "_proj" in name]:
        rows, cols = tensors[name].shape
        scale = torch.rand(-(-rows // 128), -(-cols // 128)) * 0.01 + 0.001
        spread = scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :cols]
        eight = (tensors[name] / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
        tensors[name], tensors[f"{name}_scale_inv"] = eight, scale
        owner, _, leaf = name.rpartition(".")
        setattr(expected.get_submodule(owner), leaf, torch.nn.Parameter(eight.float() * spread))
    save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = load(tmp_path, quant="f32")
    ids = some_ids(30)
    np.testing.assert_allclose(run(model, ids, 30), reference(expected, ids)[-1], atol=1e-4, rtol=0)
    model.close()


def test_progress_only_grows_and_ends_complete(tmp_path: Path) -> None:
    tiny(tmp_path, "Llama", num_hidden_layers=3)
    seen: list[tuple[str, float]] = []
    spec = LoadSpec("safetensors", (tmp_path / "model.safetensors",), 64, tmp_path / "config.json")
    model = load_model(spec, "cpu", lambda stage, fraction: seen.append((stage, fraction)))
    read = [fraction for stage, fraction in seen if stage == "read"]
    assert read == sorted(read)
    assert read[-1] == 1.0
    assert seen[-1] == ("compile", 1.0)
    assert model.context_length == 64
    assert "llama" in model.summary
    model.close()


def test_no_file_stays_mapped_or_open(tmp_path: Path) -> None:
    tiny(tmp_path, "Llama")
    model = load(tmp_path, quant=None)
    process = psutil.Process()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert not [file for file in process.open_files() if str(tmp_path) in file.path]
    model.close()


def test_close_gives_the_memory_back(tmp_path: Path) -> None:
    tiny(tmp_path, "Llama", hidden_size=512, intermediate_size=4096, num_hidden_layers=6)
    # Once through first: what libraries keep for their next call is no model's memory.
    first = load(tmp_path, quant=None)
    run(first, some_ids(600), 600)
    first.close()
    process = psutil.Process()
    before = process.memory_info().rss
    model = load(tmp_path, quant=None)
    held = model.memory.weights
    run(model, some_ids(600), 600)
    assert held > 100 << 20
    # Never a second copy of all weights: what is there now is them, the workspace and the cache.
    assert process.memory_info().rss - before < 1.25 * held
    model.close()
    assert process.memory_info().rss - before < 0.2 * held


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"quant": "q9_9"}, "unsupported_quant"),
        ({"format": "other"}, "unsupported_format"),
        ({"config": None}, "invalid_model_config"),
        ({"world_size": 2}, "tensor_parallel_unavailable"),
    ],
)
def test_what_cannot_be_loaded_is_a_typed_error(changes: dict[str, Any], code: str, tmp_path: Path) -> None:
    tiny(tmp_path, "Llama")
    fields = {
        "format": "safetensors",
        "files": (tmp_path / "model.safetensors",),
        "max_context": 64,
        "config": tmp_path / "config.json",
    }
    with pytest.raises(LoadError) as caught:
        load_model(LoadSpec(**{**fields, **changes}), "cpu", lambda stage, fraction: None)
    assert caught.value.code == code


def test_a_missing_tensor_is_found_before_any_weight_is_read(tmp_path: Path) -> None:
    tiny(tmp_path, "Llama")
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    seen: list[str] = []
    spec = LoadSpec("safetensors", (tmp_path / "model.safetensors",), 64, tmp_path / "config.json")
    with pytest.raises(FormatError, match=r"layers\.1\.mlp\.up_proj"):
        load_model(spec, "cpu", lambda stage, fraction: seen.append(stage))
    assert seen == []


def test_a_forward_call_that_makes_no_sense_changes_nothing(tmp_path: Path) -> None:
    tiny(tmp_path, "Llama")
    model = load(tmp_path, max_context=50)
    logits = np.zeros(VOCAB, dtype=np.float32)
    ids = some_ids(30)
    model.forward(3, ids, 0, logits)
    good = logits.copy()
    none = np.zeros(0, dtype=np.int32)
    calls: tuple[tuple[Any, int, Any], ...] = (
        (none, 30, logits),
        (np.array([VOCAB], dtype=np.int32), 30, logits),
        (np.array([-1], dtype=np.int32), 30, logits),
        (ids[:1], 29, logits),
        (ids[:1], 31, logits),
        (ids[:21], 30, logits),
        (ids[:1], 30, logits[:-1]),
        (ids[:1], 30, logits.astype(np.float64)),
    )
    for tokens, position, row in calls:
        with pytest.raises(ValueError, match=r"."):
            model.forward(3, tokens, position, row)
    np.testing.assert_array_equal(logits, good)
    model.forward(3, ids[:20], 30, logits)
    assert model.clear(3, keep=10) == 10
    assert model.clear(99) == 0
    model.close()
