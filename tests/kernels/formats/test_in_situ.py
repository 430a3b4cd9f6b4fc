"""Names of conversions, their spellings, and which matrix becomes what."""

import pytest

from neuron.kernels.formats import in_situ
from neuron.kernels.formats.expected import SAFETENSORS, expected_tensors
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.formats.hf_config import parse_config
from neuron.kernels.formats.in_situ import IN_SITU, effective_quant, in_situ_name, is_mixture, resident_type
from tests.kernels.formats import models

Q = "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize("name", IN_SITU)
def test_underscores_and_case_do_not_count(name: str) -> None:
    for spelling in (name, name.upper(), name.replace("_", ""), name.replace("_", "-").title()):
        assert in_situ_name(spelling) == name
        assert not is_mixture(spelling)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("Q4_K_M", "q4_k"),
        ("q5km", "q5_k"),
        ("Q3_K_L", "q3_k"),
        ("fp16", "f16"),
        ("q9_9", None),
        ("q1_k", None),
        ("", None),
    ],
)
def test_other_spellings(spelling: str, name: str | None) -> None:
    assert in_situ_name(spelling) == name
    assert is_mixture(spelling) == ("k" in spelling.lower() and name is not None)


def test_rows_that_are_not_whole_superblocks_get_smaller_blocks() -> None:
    assert resident_type(GgmlType.Q4_K, Q, 512) is GgmlType.Q4_K
    wanted = {"q2_k": "q4_0", "q3_k": "q4_0", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0", "q4_1": "q4_1"}
    for name, smaller in wanted.items():
        assert resident_type(IN_SITU[name], Q, 576) is IN_SITU[smaller]
        assert resident_type(IN_SITU[name], Q, 100) is None
    assert resident_type(GgmlType.F16, Q, 100) is GgmlType.F16


def test_what_is_kept() -> None:
    for name in ("model.embed_tokens.weight", "m.layers.0.linear_attn.in_proj_a.weight", "x.in_proj_b.weight"):
        assert resident_type(GgmlType.Q8_0, name, 256) is None
        assert resident_type(GgmlType.BF16, name, 256) is GgmlType.BF16
    for name in ("lm_head.weight", Q, "m.layers.0.linear_attn.in_proj_qkv.weight"):
        assert resident_type(GgmlType.Q8_0, name, 256) is GgmlType.Q8_0


@pytest.mark.parametrize("name", models.ALL)
def test_the_weights_of_a_config_are_those_of_its_matrices(name: str) -> None:
    config = parse_config(models.config_json(models.ALL[name]))
    shapes = expected_tensors(config, SAFETENSORS).values()
    matrices = sum(shape[0] * shape[1] for shape in shapes if len(shape) == 2)
    assert config.matrix_weights == matrices


def test_a_small_model_is_float32_unless_something_else_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse_config(models.config_json(models.LLAMA))
    assert effective_quant(config, None) == "f32"
    assert effective_quant(config, "bf16") == "bf16"
    monkeypatch.setattr(in_situ, "SMALL_WEIGHTS", config.matrix_weights - 1)
    assert effective_quant(config, None) is None
