"""config.json of every architecture, every rope spelling, tie flags at both levels, and absurd numbers."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron.kernels.formats.errors import FormatError
from neuron.kernels.formats.hf_config import parse_config
from neuron.kernels.formats.model_config import Architecture, LayerKind, RopeConfig, RopeScaling
from tests.kernels.formats.models import ALL, HYBRID, LLAMA, QWEN2, QWEN3, config_json


def rope(**changes: Any) -> RopeConfig:
    return parse_config(config_json(LLAMA, head_dim=64, **changes)).rope


def refused(text: bytes, kind: str = "invalid_model_config") -> str:
    with pytest.raises(FormatError) as caught:
        parse_config(text)
    assert caught.value.kind == kind, caught.value.message
    return caught.value.message


def test_each_architecture() -> None:
    llama, qwen2, qwen3, hybrid = (parse_config(config_json(config)) for config in (LLAMA, QWEN2, QWEN3, HYBRID))
    assert [c.architecture for c in (llama, qwen2, qwen3, hybrid)] == list(Architecture)
    assert (llama.head_dim, qwen3.head_dim, hybrid.head_dim) == (8, 16, 64)
    assert (llama.attention_bias, qwen2.attention_bias, qwen2.attention_out_bias) == (False, True, False)
    assert (llama.qk_norm, qwen3.qk_norm, hybrid.qk_norm) == (False, True, True)
    assert hybrid.zero_centred_norms
    assert hybrid.attn_output_gate
    assert hybrid.linear is not None
    assert not hybrid.linear.tiled_value_heads
    assert [kind is LayerKind.FULL for kind in hybrid.layer_kinds] == [False, False, False, True]
    assert hybrid.state_bytes == 3 * 4 * (4 * 8 * 16 + (2 * 2 * 8 + 64) * 4)
    assert llama.kv_elements_per_token == 2 * 2 * 2 * 8


def test_head_dim_defaults_are_the_architectures_own() -> None:
    assert parse_config(config_json(QWEN3, head_dim=...)).head_dim == 128
    assert parse_config(config_json(HYBRID, head_dim=..., rope_parameters=...)).head_dim == 256


def test_text_config_is_nested() -> None:
    inner = {key: value for key, value in HYBRID.items() if key != "architectures"}
    outer = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "image_token_id": 50,
        "vision_start_token_id": 51,
        "text_config": inner | {"eos_token_id": [2, 3]},
        "vision_config": {"depth": 2, "hidden_size": 16, "out_hidden_size": 32},
        "tie_word_embeddings": False,
    }
    nested = parse_config(json.dumps(outer).encode())
    flat = parse_config(config_json(HYBRID))
    assert nested.image_token_id == 50
    assert nested.vision is not None
    assert nested.vision.depth == 2
    assert nested.eos_token_ids == (2, 3)
    same = msgspec.structs.replace(
        nested,
        vision=None,
        image_token_id=None,
        vision_start_token_id=None,
        eos_token_ids=(2,),
        tie_word_embeddings=None,
    )
    assert same == flat
    text_only = parse_config(json.dumps(outer | {"language_model_only": True}).encode())
    assert text_only.vision is None


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [(True, ..., True), (..., True, True), (False, ..., False), (..., False, False), (..., ..., None),
     (True, True, True), (False, True, None), (None, True, True)],
)  # fmt: skip
def test_tie_flags_at_both_levels(outer: Any, inner: Any, expected: bool | None) -> None:
    text = json.loads(config_json(HYBRID, architectures=..., tie_word_embeddings=inner))
    document = config_json(
        {"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": text}, tie_word_embeddings=outer
    )
    assert parse_config(document).tie_word_embeddings is expected


def test_end_tokens_are_a_union_in_order() -> None:
    assert parse_config(config_json(LLAMA, eos_token_id=[7, 5, 7])).eos_token_ids == (7, 5)
    assert parse_config(config_json(LLAMA, eos_token_id=None)).eos_token_ids == ()


# -- rope --------------------------------------------------------------------------------------


def test_equal_meanings_give_equal_settings() -> None:
    plain = rope(rope_theta=5e5)
    assert plain == RopeConfig(theta=5e5, rotary_dim=64)
    assert rope(rope_theta=5e5, rope_scaling=None) == plain
    assert rope(rope_theta=5e5, rope_scaling={"type": "default"}) == plain
    assert rope(rope_parameters={"rope_theta": 5e5, "rope_type": "default"}) == plain
    assert rope() == RopeConfig(theta=10_000.0, rotary_dim=64)


@pytest.mark.parametrize(
    "spelling",
    [
        {"partial_rotary_factor": 0.25},
        {"rope_parameters": {"partial_rotary_factor": 0.25}},
        {"partial_rotary_factor": 0.25, "rope_parameters": {"partial_rotary_factor": 0.25, "rope_type": "default"}},
    ],
)
def test_the_partial_factor_counts_once(spelling: dict[str, Any]) -> None:
    assert rope(**spelling).rotary_dim == 16


def test_the_hybrid_interleaves_axes_where_the_file_is_silent() -> None:
    silent = parse_config(config_json(HYBRID, head_dim=..., rope_parameters={"rope_theta": 1e7})).rope
    assert (silent.rotary_dim, silent.mrope_section, silent.mrope_interleaved) == (64, (11, 11, 10), True)
    assert parse_config(config_json(QWEN3, head_dim=64)).rope.mrope_section is None


@pytest.mark.parametrize("name", ["type", "rope_type"])
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_scalings(key: str, name: str) -> None:
    linear = rope(**{key: {name: "linear", "factor": 2}})
    assert (linear.scaling, linear.factor) == (RopeScaling.LINEAR, 2.0)
    llama3 = rope(
        **{
            key: {
                name: "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 256,
            }
        }
    )
    assert llama3.scaling is RopeScaling.LLAMA3
    assert (llama3.factor, llama3.low_freq_factor, llama3.high_freq_factor) == (8.0, 1.0, 4.0)
    assert llama3.original_max_position == 256
    yarn = rope(**{key: {name: "yarn", "factor": 4.0, "original_max_position_embeddings": 128}})
    assert (yarn.scaling, yarn.factor, yarn.original_max_position) == (RopeScaling.YARN, 4.0, 128)
    assert (yarn.beta_fast, yarn.beta_slow, yarn.attention_factor) == (32.0, 1.0, None)


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_scaling": {"type": "foo", "factor": 2}},
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2}},
        {"rope_scaling": {"rope_type": "longrope", "short_factor": []}},
        {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 2, "mscale": 1.0}},
    ],
)
def test_rope_that_is_not_built(spelling: dict[str, Any]) -> None:
    message = refused(config_json(LLAMA, **spelling), "unsupported_model")
    assert "rope" in message or "yarn" in message


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 0},
        {"rope_theta": "1e4"},
        {"rope_scaling": []},
        {"rope_scaling": {"type": "linear"}},
        {"rope_scaling": {"type": "linear", "factor": 0.5}},
        {"rope_scaling": {"type": 7}},
        {"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}},
        # None of these has a logarithm or a quotient.
        {"rope_theta": 1.0, "rope_scaling": {"type": "yarn", "factor": 2}},
        {"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 0, "high_freq_factor": 4}},
        {"rope_scaling": {"type": "yarn", "factor": 2, "beta_fast": 0}},
        {"rope_scaling": {"type": "yarn", "factor": 2, "beta_slow": 5e-324}},
        {"rope_parameters": {"partial_rotary_factor": 1.5}},
        {"rope_parameters": {"partial_rotary_factor": 0.01}},
        {"rope_parameters": {"mrope_section": [1, 1]}},
        {"rope_parameters": {"mrope_section": [1, 1, 1]}},
    ],
)
def test_rope_numbers_that_cannot_be(spelling: dict[str, Any]) -> None:
    refused(config_json(LLAMA, **spelling))


# -- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, "Qwen3MoeForCausalLM"),
        ({"architectures": ..., "model_type": "gemma3"}, "gemma3"),
        ({"architectures": []}, "none at all"),
        ({"architectures": ["x\n" * 500]}, "..."),
    ],
)
def test_unknown_architectures_are_named(changes: dict[str, Any], name: str) -> None:
    message = refused(config_json(LLAMA, **changes), "unsupported_architecture")
    assert name in message
    assert "\n" not in message


def test_model_type_serves_without_architectures() -> None:
    assert parse_config(config_json(LLAMA, architectures=..., model_type="llama")).architecture is Architecture.LLAMA


@pytest.mark.parametrize(
    "changes",
    [
        {"use_sliding_window": True, "sliding_window": 128},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"layer_types": ["full_attention", "linear_attention"]},
        {"hidden_act": "gelu"},
        {"quantization_config": {"quant_method": "gptq", "bits": 4}},
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}},
    ],
)
def test_features_that_are_not_built(changes: dict[str, Any]) -> None:
    refused(config_json(QWEN3, **changes), "unsupported_model")


@pytest.mark.parametrize(
    "changes",
    [
        {"use_sliding_window": False, "sliding_window": 128},
        {"use_sliding_window": True, "sliding_window": None},
        {"use_sliding_window": True, "sliding_window": 4096},
        {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 2},
        {"layer_types": ["full_attention", "full_attention"]},
        {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}},
        {"auto_map": {"AutoModel": "evil.Model"}, "torch_dtype": "bfloat16", "unknown": {"deep": [1]}},
    ],
)
def test_what_makes_no_difference(changes: dict[str, Any]) -> None:
    assert parse_config(config_json(QWEN3, **changes)) == parse_config(config_json(QWEN3))


_ABSURD: list[Any] = [0, -1, 1_000_000_000, 1 << 70, 1.5, "8", True, [], {}, 1e300]


@pytest.mark.parametrize("value", _ABSURD, ids=repr)
@pytest.mark.parametrize(
    "key",
    ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
     "num_key_value_heads", "max_position_embeddings", "head_dim", "linear_num_key_heads", "linear_num_value_heads",
     "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim", "full_attention_interval"],
)  # fmt: skip
def test_absurd_numbers(key: str, value: Any) -> None:
    refused(config_json(HYBRID, **{key: value}))


@pytest.mark.parametrize(
    "changes",
    [
        {"num_key_value_heads": 3},
        {"head_dim": 7},
        {"rms_norm_eps": -1.0},
        {"rms_norm_eps": None, "hidden_size": None},
        {"linear_num_value_heads": 3},
        {"layer_types": ["full_attention"]},
        {"layer_types": "full_attention"},
        {"eos_token_id": "2"},
        {"eos_token_id": [-1]},
        {"eos_token_id": list(range(100))},
        {"tie_word_embeddings": "yes"},
        {"attention_bias": 1},
        {"text_config": []},
    ],
)
def test_settings_that_contradict(changes: dict[str, Any]) -> None:
    refused(config_json(HYBRID, **changes))


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"null", b"{", b'{"a": NaN}', b'{"a": 1, "a": 2}', b"\xff", b'{"a":' * 100_000, b" " * (5 << 20)],
    ids=["empty", "list", "null", "cut", "nan", "twice", "not utf-8", "deep", "large"],
)
def test_what_is_no_config(text: bytes) -> None:
    refused(text)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(name=st.sampled_from(sorted(ALL)), data=st.data())
def test_any_value_in_any_setting_ends_typed(name: str, data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted({*ALL[name], "rope_scaling", "layer_types", "text_config", "head_dim"})))
    try:
        config = parse_config(config_json(ALL[name], **{key: data.draw(_json)}))
    except FormatError:
        return
    assert config.num_layers == len(config.layer_kinds)
    assert 2 <= config.rope.rotary_dim <= config.head_dim
