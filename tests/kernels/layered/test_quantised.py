"""Matrices in blocks: each type against its dequantised weights, shards against parts of the whole, typed refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from neuron.kernels.errors import IndivisibleShard
from neuron.kernels.formats.dequant import dequantise
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.formats.in_situ import IN_SITU
from neuron.kernels.formats.safetensors import SafetensorsSet
from neuron.kernels.layered.block_linear import BlockLinear
from neuron.kernels.threads import Team
from neuron.kernels.weights.reader import SafetensorsReader
from tests.kernels.decoder.test_quantised_load import stored_bytes
from tests.kernels.decoder.tiny import reference, run, some_ids, tiny
from tests.kernels.layered.ranks import RankedModel, load, relative
from tests.kernels.quant.blocks import random_matrix

pytestmark = pytest.mark.timeout(300)
BLOCKS = [name for name, kind in IN_SITU.items() if kind.block_size > 1]
WIDE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 1,
    "head_dim": 128,
    "initializer_range": 0.05,
}


@pytest.fixture(scope="module")
def team() -> Any:
    made = Team(1)
    yield made
    made.close()


@pytest.mark.parametrize("kind", list(GgmlType))
@pytest.mark.parametrize("n", [1, 3, 16, 17])
def test_a_block_linear_is_its_dequantised_matrix(kind: GgmlType, n: int, team: Team) -> None:
    matrix = random_matrix(kind, 37, 3 * 256)
    weights = dequantise(matrix.data.reshape(-1), kind, (37, 768))
    x = torch.from_numpy(np.random.default_rng(1).standard_normal((n, 768)).astype(np.float32))
    linear = BlockLinear(matrix, torch.float32, team)
    expected = x.double() @ torch.from_numpy(weights).double().T
    assert relative(linear.forward(x).numpy(), expected.numpy()) < 2e-4
    part = linear.part(5, 30)
    assert part.rows == 25
    assert relative(part.forward(x).numpy(), expected[:, 5:30].numpy()) < 2e-4
    np.testing.assert_array_equal(linear.lookup(torch.tensor([36, 0, 36])).numpy(), weights[[36, 0, 36]])


@pytest.mark.parametrize("quant", BLOCKS)
def test_a_quantised_model_answers_like_its_dequantised_weights(quant: str, tmp_path: Path, team: Team) -> None:
    """Alone and on two ranks: the shards of a matrix are the parts of the whole in blocks."""
    expected = tiny(tmp_path, "Qwen3", dtype=torch.bfloat16, **WIDE)
    kind = IN_SITU[quant]
    reader = SafetensorsReader(SafetensorsSet.open([tmp_path / "model.safetensors"]), team)
    for name, parameter in expected.named_parameters():
        if parameter.ndim == 2 and "embed" not in name:
            matrix = reader.matrix(name, kind)
            values = dequantise(matrix.data.reshape(-1), kind, (matrix.rows, matrix.cols))
            parameter.data = torch.from_numpy(values.copy())
    ids = some_ids(40)
    wanted = reference(expected, ids)
    model = load(tmp_path, quant=quant)
    assert model.memory.weights == stored_bytes(tmp_path, quant)
    assert relative(run(model, ids[:12], 1), wanted[11]) < 5e-3
    assert relative(run(model, ids, 40), wanted[39]) < 5e-2
    model.close()
    shared = RankedModel(tmp_path, 2, quant=quant)
    assert relative(run(shared, ids[:12], 1), wanted[11]) < 5e-3
    assert relative(run(shared, ids, 40), wanted[39]) < 5e-2
    shared.close()


def test_a_part_that_would_end_within_a_block_is_refused(tmp_path: Path) -> None:
    """512 columns of down_proj in four parts of 128 cut through blocks of 256."""
    tiny(tmp_path, "Qwen3", dtype=torch.bfloat16, **WIDE)
    with pytest.raises(IndivisibleShard, match=r"down_proj.*512 columns in q4_k blocks of 256"):
        RankedModel(tmp_path, 4, quant="q4_k")
    model = RankedModel(tmp_path, 4, quant="q4_0")
    model.close()
