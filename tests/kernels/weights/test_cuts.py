"""Cuts of stored matrices: each type's parts are those of the whole, as stored, converted, quantised and from FP8."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from neuron.kernels.errors import IndivisibleShard
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.formats.safetensors import SafetensorsSet
from neuron.kernels.formats.sharding import Cut, Ranges
from neuron.kernels.threads import Team
from neuron.kernels.weights import convert
from neuron.kernels.weights.reader import SafetensorsReader
from neuron.kernels.weights.stored import indices, stored_rows
from tests.kernels.quant.blocks import random_matrix

ROWS: Ranges = ((30, 37), (2, 9))
COLS: Ranges = ((512, 768), (0, 256))


@pytest.fixture
def team() -> Any:
    made = Team(2)
    yield made
    made.close()


def reader_of(folder: Path, team: Team, **tensors: torch.Tensor) -> SafetensorsReader:
    save_file(tensors, folder / "model.safetensors")
    return SafetensorsReader(SafetensorsSet.open([folder / "model.safetensors"]), team)


@pytest.mark.parametrize("kind", list(GgmlType))
@pytest.mark.parametrize("rows", [None, ROWS])
@pytest.mark.parametrize("cols", [None, COLS])
def test_rows_and_columns_of_every_stored_type(kind: GgmlType, rows: Ranges | None, cols: Ranges | None) -> None:
    matrix = random_matrix(kind, 37, 768)
    source = stored_rows(matrix.data.reshape(-1), kind, 37, 768, "w", Cut(rows, cols))
    out = np.zeros((source.rows, source.row_bytes), dtype=np.uint8)
    source.copy(0, out[:3])
    source.copy(3, out[3:])
    whole = matrix.data if rows is None else matrix.data[indices(rows)]
    if cols is not None:
        blocks = whole.reshape(len(whole), -1, kind.type_size)
        whole = blocks[:, indices(tuple((a // kind.block_size, b // kind.block_size) for a, b in cols))]
    np.testing.assert_array_equal(out, whole.reshape(len(whole), -1))


@pytest.mark.parametrize("target", [GgmlType.F32, GgmlType.Q8_0, GgmlType.Q4_K, GgmlType.Q6_K])
@pytest.mark.parametrize("cut", [Cut(rows=ROWS), Cut(cols=COLS), Cut(ROWS, COLS)])
def test_a_part_made_blocks_is_a_part_of_the_blocks(
    target: GgmlType, cut: Cut, tmp_path: Path, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(3)
    reader = reader_of(tmp_path, team, w=(torch.randn(37, 768) * 0.05).bfloat16())
    whole = reader.matrix("w", target).data
    monkeypatch.setattr(convert, "CHUNK_WEIGHTS", 5 * 768)
    wanted = whole if cut.rows is None else whole[indices(cut.rows)]
    if cut.cols is not None:
        size = target.block_size
        blocks = wanted.reshape(len(wanted), -1, target.type_size)
        wanted = blocks[:, indices(tuple((a // size, b // size) for a, b in cut.cols))].reshape(len(wanted), -1)
    np.testing.assert_array_equal(reader.matrix("w", target, cut).data, wanted)


@pytest.mark.parametrize("cut", [Cut(rows=((100, 300),)), Cut(cols=((96, 160),)), Cut(((3, 150),), ((0, 32),))])
def test_parts_of_fp8_meet_the_scales_of_their_own_blocks(cut: Cut, tmp_path: Path, team: Team) -> None:
    torch.manual_seed(3)
    eight = (torch.randn(300, 160) * 20).to(torch.float8_e4m3fn)
    scale = torch.rand(3, 2) * 0.01 + 0.001
    reader = reader_of(tmp_path, team, w=eight, w_scale_inv=scale)
    for kind in (GgmlType.F32, GgmlType.Q8_0):
        whole = reader.matrix("w", kind).data
        wanted = whole if cut.rows is None else whole[indices(cut.rows)]
        if cut.cols is not None:
            blocks = wanted.reshape(len(wanted), -1, kind.type_size)
            places = tuple((a // kind.block_size, b // kind.block_size) for a, b in cut.cols)
            wanted = blocks[:, indices(places)].reshape(len(wanted), -1)
        np.testing.assert_array_equal(reader.matrix("w", kind, cut).data, wanted)


def test_a_cut_within_a_block_names_tensor_and_type(tmp_path: Path, team: Team) -> None:
    reader = reader_of(tmp_path, team, w=torch.zeros(4, 512))
    for kind, border in ((GgmlType.Q8_0, 80), (GgmlType.Q4_K, 128)):
        with pytest.raises(IndivisibleShard, match=rf"Tensor 'w' of 512 columns in {kind.name.lower()} blocks"):
            reader.matrix("w", kind, Cut(cols=((0, border),)))
    assert reader.matrix("w", GgmlType.F32, Cut(cols=((0, 80),))).cols == 80
