"""Missing, misshapen and left-over tensors; tied heads; names that are passed over."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from neuron.kernels.formats.errors import FormatError
from neuron.kernels.formats.expected import GGUF, PREFIXES, SAFETENSORS, TensorCheck, check_tensors, expected_tensors
from neuron.kernels.formats.hf_config import parse_config
from tests.kernels.formats.models import ALL, HYBRID, LLAMA, config_json

FORMATS = (SAFETENSORS, GGUF)


@dataclass
class Stub:
    shape: tuple[int, ...]
    dtype: str = "F32"


def stubs(config: Mapping[str, Any], format: str, **changes: Any) -> dict[str, Stub]:
    parsed = parse_config(config_json(config, **changes))
    return {name: Stub(shape) for name, shape in expected_tensors(parsed, format).items()}


def check(config: Mapping[str, Any], tensors: Mapping[str, Stub], format: str, **changes: Any) -> TensorCheck:
    return check_tensors(parse_config(config_json(config, **changes)), tensors, format)


def refused(kind: str, *arguments: Any, **changes: Any) -> str:
    with pytest.raises(FormatError) as caught:
        check(*arguments, **changes)
    assert caught.value.kind == kind, caught.value.message
    return caught.value.message


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ALL)
def test_a_complete_model(name: str, format: str) -> None:
    assert check(ALL[name], stubs(ALL[name], format), format).ignored == ()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ALL)
def test_every_missing_and_misshapen_tensor_is_named(name: str, format: str) -> None:
    config = dict(ALL[name]) | {"tie_word_embeddings": False}
    whole = stubs(config, format)
    kind = "invalid_gguf" if format == GGUF else "corrupt_weights"
    for tensor in whole:
        rest = {key: value for key, value in whole.items() if key != tensor}
        assert tensor in refused(kind, config, rest, format) or tensor.endswith("embed_tokens.weight")
        wrong = whole | {tensor: Stub((*whole[tensor].shape, 1))}
        assert tensor in refused(kind, config, wrong, format)


@pytest.mark.parametrize("format", FORMATS)
def test_leftover_tensors(format: str) -> None:
    kind = "invalid_gguf" if format == GGUF else "corrupt_weights"
    layer = "blk.2.attn_q.weight" if format == GGUF else "model.layers.2.self_attn.q_proj.weight"
    for name in (layer, "stray", "blk.0.nextn", "model.layers.0.self_attn.q_proj.weight_scale"):
        assert "no part" in refused(kind, LLAMA, stubs(LLAMA, format) | {name: Stub((1,))}, format)


def test_names_that_are_passed_over() -> None:
    dense = ["mtp.fc.weight", "model.visual.pos_embed", "model.layers.0.self_attn.rotary_emb.inv_freq"]
    tensors = stubs(HYBRID, SAFETENSORS) | {name: Stub((3,)) for name in dense}
    assert check(HYBRID, tensors, SAFETENSORS).ignored == tuple(dense)
    gguf = ["blk.4.nextn.eh_proj.weight", "blk.4.attn_q.weight", "rope_freqs.weight"]
    tensors = stubs(HYBRID, GGUF) | {name: Stub((3,)) for name in gguf}
    assert check(HYBRID, tensors, GGUF).ignored == tuple(gguf)


def test_scales_belong_to_their_weight() -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors = stubs(LLAMA, SAFETENSORS)
    tensors[name].dtype = "F8_E4M3"
    assert check(LLAMA, tensors | {f"{name}_scale_inv": Stub((1, 1))}, SAFETENSORS).ignored == ()
    refused("corrupt_weights", LLAMA, tensors | {"other.weight_scale_inv": Stub((1, 1))}, SAFETENSORS)


@pytest.mark.parametrize("dtype", ["I8", "U8", "I32", "F64", "BOOL"])
def test_data_types_that_are_not_read(dtype: str) -> None:
    tensors = stubs(LLAMA, SAFETENSORS)
    tensors["model.norm.weight"].dtype = dtype
    assert dtype in refused("unsupported_model", LLAMA, tensors, SAFETENSORS)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_where_the_text_model_lies(prefix: str) -> None:
    config = parse_config(config_json(LLAMA))
    tensors = {name: Stub(shape) for name, shape in expected_tensors(config, SAFETENSORS, prefix=prefix).items()}
    assert check_tensors(config, tensors, SAFETENSORS).prefix == prefix


@pytest.mark.parametrize("format", FORMATS)
def test_tied_heads(format: str) -> None:
    head = "output.weight" if format == GGUF else "lm_head.weight"
    with_head = stubs(LLAMA, format)
    without = {name: stub for name, stub in with_head.items() if name != head}
    assert head in with_head
    assert check(LLAMA, without, format, tie_word_embeddings=True).tied
    assert not check(LLAMA, with_head, format, tie_word_embeddings=False).tied
    kind = "invalid_gguf" if format == GGUF else "corrupt_weights"
    assert head in refused(kind, LLAMA, without, format, tie_word_embeddings=False)
    both = check(LLAMA, with_head, format, tie_word_embeddings=True)
    assert both.tied
    assert both.ignored == (head,)
    assert check(LLAMA, without, format).tied
    assert not check(LLAMA, with_head, format).tied
