"""Files of the usual converter and quantiser, read as the gguf package reads them. Skipped where they are absent."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest

from neuron.kernels.formats.expected import GGUF, SAFETENSORS, check_tensors
from neuron.kernels.formats.gguf import GgufFile
from neuron.kernels.formats.gguf_config import config_from_gguf
from neuron.kernels.formats.hf_config import parse_config
from neuron.kernels.formats.safetensors import SafetensorsSet

FOLDER = Path(__file__).resolve().parents[4] / "shared" / "fixtures" / "hybrid-gguf"

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the converted hybrid is not beside this clone")


@pytest.mark.parametrize("quant", ["f32", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0", "Q3_K_M", "Q2_K"])
def test_every_tensor_equals_the_package(quant: str) -> None:
    path = FOLDER / f"hybrid-2x-{quant}.gguf"
    opened = GgufFile.open(path)
    reader = gguf.GGUFReader(path)
    assert len(reader.tensors) == len(opened.tensors)
    for tensor in reader.tensors:
        mine = opened.dequantised(tensor.name)
        assert mine.shape == tuple(int(size) for size in reversed(tensor.shape))
        expected = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(mine.shape)
        np.testing.assert_array_equal(mine, expected)
    config = config_from_gguf(opened)
    assert not check_tensors(config, opened.tensors, GGUF).tied


def test_both_formats_describe_one_model() -> None:
    dense = parse_config((FOLDER / "config.json").read_bytes())
    tensors = SafetensorsSet.open([FOLDER / "model.safetensors"]).tensors
    assert check_tensors(dense, tensors, SAFETENSORS).ignored == ()
    converted = config_from_gguf(GgufFile.open(FOLDER / "hybrid-2x-f32.gguf"))
    assert dense.linear is not None
    assert converted.linear is not None
    for field in ("architecture", "vocab_size", "hidden_size", "num_layers", "head_dim", "layer_kinds", "num_kv_heads"):
        assert getattr(dense, field) == getattr(converted, field)
    assert (dense.rope.theta, dense.rope.rotary_dim) == (converted.rope.theta, converted.rope.rotary_dim)
    assert dense.rope.mrope_section == converted.rope.mrope_section
    assert dense.state_bytes == converted.state_bytes
    # What the converter changed, and the reader says so.
    assert (dense.linear.tiled_value_heads, converted.linear.tiled_value_heads) == (False, True)
    assert (dense.zero_centred_norms, converted.zero_centred_norms) == (True, False)
    assert json.loads((FOLDER / "config.json").read_bytes())["eos_token_id"] in converted.eos_token_ids
