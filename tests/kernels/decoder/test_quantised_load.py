"""Loading safetensors with a block `quant`: which matrices become blocks, the logits they give, the bytes they take."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import quants
from gguf.constants import GGMLQuantizationType
from safetensors.torch import load_file, save_file

from neuron.actors.sources.description import describe_dense
from neuron.kernels.engine import LoadSpec
from neuron.kernels.errors import WeightMismatch
from neuron.kernels.formats.dequant import dequantise
from neuron.kernels.formats.errors import FormatKind
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.formats.in_situ import IN_SITU
from neuron.kernels.formats.mapped_file import read_header
from neuron.kernels.formats.safetensors import SafetensorsSet
from neuron.kernels.formats.safetensors_header import parse_safetensors_header
from neuron.kernels.load import load_model
from neuron.kernels.threads import Team
from neuron.kernels.weights import convert
from neuron.kernels.weights.matrix import Bytes, aligned_bytes
from neuron.kernels.weights.reader import SafetensorsReader
from tests.kernels.decoder.tiny import Floats, load, reference, run, some_ids, tiny
from tests.kernels.hybrid.tiny import tiny_hybrid

BLOCKS = [name for name, kind in IN_SITU.items() if kind.block_size > 1]
WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1, "initializer_range": 0.05}


def relative(found: Floats, wanted: Floats) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def stored_bytes(folder: Path, quant: str) -> int:
    """What preflight says that the weights will take."""
    header = read_header(folder / "model.safetensors", FormatKind.CORRUPT_WEIGHTS, parse_safetensors_header)
    description = describe_dense((folder / "config.json").read_bytes(), [header], None, quant)
    return description.matrix_bytes + description.vector_bytes


@pytest.mark.parametrize("quant", BLOCKS)
def test_a_quantised_model_answers_like_its_dequantised_weights(quant: str, tmp_path: Path) -> None:
    expected = tiny(tmp_path, "Qwen3", dtype=torch.bfloat16, **WIDE)
    kind = IN_SITU[quant]
    team = Team(1)
    reader = SafetensorsReader(SafetensorsSet.open([tmp_path / "model.safetensors"]), team)
    for name, parameter in expected.named_parameters():
        if parameter.ndim == 2 and "embed" not in name:
            matrix = reader.matrix(name, kind)
            values = dequantise(matrix.data.reshape(-1), kind, (matrix.rows, matrix.cols))
            parameter.data = torch.from_numpy(values.copy())
    team.close()
    ids = some_ids(12)
    wanted = reference(expected, ids)[-1]
    model = load(tmp_path, quant=quant.replace("_", "").upper())
    assert relative(run(model, ids, 1), wanted) < 5e-3
    assert relative(run(model, ids, 12), wanted) < 5e-2
    assert model.memory.weights == stored_bytes(tmp_path, quant)
    model.close()


def test_a_tied_head_stays_as_it_is_stored(tmp_path: Path) -> None:
    tiny(tmp_path, "Llama", dtype=torch.bfloat16, tie_word_embeddings=True, **WIDE)
    model = load(tmp_path, quant="q8_0")
    assert model.memory.weights == stored_bytes(tmp_path, "q8_0")
    model.close()


def test_a_hybrid_keeps_its_small_projections(tmp_path: Path) -> None:
    expected = tiny_hybrid(tmp_path, hidden_size=64, intermediate_size=96, initializer_range=0.1)
    ids = some_ids(20)
    wanted = reference(expected, ids)[-1]
    model = load(tmp_path, quant="q8_0")
    assert model.memory.weights == stored_bytes(tmp_path, "q8_0")
    assert relative(run(model, ids, 1), wanted) < 5e-2
    model.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_chunks_leave_no_seam_and_are_all_that_is_held(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(3)
    weight = (torch.randn(37, 96) * 0.05).to(dtype)
    save_file({"w": weight}, tmp_path / "model.safetensors")
    team = Team(2)
    reader = SafetensorsReader(SafetensorsSet.open([tmp_path / "model.safetensors"]), team)
    monkeypatch.setattr(convert, "CHUNK_WEIGHTS", 5 * 96)
    held: list[int] = []

    def counted(size: int) -> Bytes:
        held.append(size)
        return aligned_bytes(size)

    monkeypatch.setattr(convert, "aligned_bytes", counted)
    matrix = reader.matrix("w", GgmlType.Q5_1)
    wanted = quants.quantize(weight.float().numpy(), GGMLQuantizationType.Q5_1)
    np.testing.assert_array_equal(matrix.data, wanted)
    # Beside the result: five rows as stored, and as float32.
    assert held == [5 * 96 * weight.element_size(), 5 * 96 * 4]
    team.close()


def test_fp8_blocks_are_quantised_without_a_detour(tmp_path: Path) -> None:
    torch.manual_seed(3)
    eight = (torch.randn(200, 160) * 20).to(torch.float8_e4m3fn)
    scale = torch.rand(2, 2) * 0.01 + 0.001
    save_file({"w": eight, "w_scale_inv": scale}, tmp_path / "model.safetensors")
    spread = scale.repeat_interleave(128, 0)[:200].repeat_interleave(128, 1)[:, :160]
    team = Team(2)
    reader = SafetensorsReader(SafetensorsSet.open([tmp_path / "model.safetensors"]), team)
    wanted = quants.quantize((eight.float() * spread).numpy(), GGMLQuantizationType.Q8_0)
    np.testing.assert_array_equal(reader.matrix("w", GgmlType.Q8_0).data, wanted)
    team.close()


def test_weights_that_are_no_numbers_are_a_typed_error(tmp_path: Path) -> None:
    tiny(tmp_path, "Llama", hidden_size=64, intermediate_size=96)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][7, 40] = torch.nan
    save_file(tensors, tmp_path / "model.safetensors")
    spec = LoadSpec("safetensors", (tmp_path / "model.safetensors",), 64, tmp_path / "config.json", "q4_0")
    with pytest.raises(WeightMismatch, match=r"layers\.1\.mlp\.up_proj") as caught:
        load_model(spec, "cpu", lambda stage, fraction: None)
    assert caught.value.code == "corrupt_weights"
