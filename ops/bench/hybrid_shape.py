"""`python -m ops.bench.hybrid_shape FOLDER`: the Qwen3.5-0.8B shape with random bfloat16 weights, for benchmarks.

Writes model.safetensors with config.json, and the same weights as model-bf16.gguf for peers. Key and value heads are
equal in number here, so that the converter's order of value heads changes nothing.
"""

from pathlib import Path
from typing import Any

import click
import gguf
import numpy as np
import torch

VOCABULARY = 248_320
SETTINGS: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 6,
    "max_position_embeddings": 262_144,
    "tie_word_embeddings": True,
    "eos_token_id": 248_044,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
}
_LINEAR = {
    "in_proj_qkv.weight": "attn_qkv.weight",
    "in_proj_z.weight": "attn_gate.weight",
    "in_proj_a.weight": "ssm_alpha.weight",
    "in_proj_b.weight": "ssm_beta.weight",
    "conv1d.weight": "ssm_conv1d.weight",
    "A_log": "ssm_a",
    "dt_bias": "ssm_dt.bias",
    "norm.weight": "ssm_norm.weight",
    "out_proj.weight": "ssm_out.weight",
}
_OTHERS = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
}


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def main(folder: Path) -> None:
    """Make the model in FOLDER unless it is there."""
    if (folder / "model-bf16.gguf").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    model = _model()
    model.save_pretrained(folder)
    _write_gguf(model, folder / "model-bf16.gguf")


def _model() -> Any:
    import transformers

    torch.manual_seed(0)
    with torch.device("meta"):
        model = transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(**SETTINGS))
    model = model.to(torch.bfloat16).to_empty(device="cpu")
    model.tie_weights()
    for name, parameter in model.named_parameters():
        if name.endswith("linear_attn.norm.weight"):
            torch.nn.init.ones_(parameter)
        elif "norm" in name or name.endswith("bias"):
            torch.nn.init.zeros_(parameter)
        elif name.endswith("A_log"):
            torch.nn.init.uniform_(parameter, -3.0, 1.0)
        else:
            torch.nn.init.normal_(parameter, 0.0, 0.02)
    return model


def _write_gguf(model: Any, path: Path) -> None:
    writer = gguf.GGUFWriter(path, "qwen35")
    _write_metadata(writer)
    for name, value in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        target = _gguf_name(name)
        if value.ndim == 2:
            raw = value.contiguous().view(torch.uint8).numpy()
            writer.add_tensor(target, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
            continue
        values = value.float().numpy().squeeze()
        if name.endswith("A_log"):
            values = -np.exp(values)
        elif name.endswith("norm.weight") and "linear_attn" not in name:
            values = values + 1
        writer.add_tensor(target, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_metadata(writer: Any) -> None:
    rope = SETTINGS["rope_parameters"]
    writer.add_block_count(SETTINGS["num_hidden_layers"])
    writer.add_context_length(SETTINGS["max_position_embeddings"])
    writer.add_embedding_length(SETTINGS["hidden_size"])
    writer.add_feed_forward_length(SETTINGS["intermediate_size"])
    writer.add_head_count(SETTINGS["num_attention_heads"])
    writer.add_head_count_kv(SETTINGS["num_key_value_heads"])
    writer.add_key_length(SETTINGS["head_dim"])
    writer.add_value_length(SETTINGS["head_dim"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(VOCABULARY)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(64)
    writer.add_array("qwen35.rope.dimension_sections", [*rope["mrope_section"], 0])
    writer.add_uint32("qwen35.full_attention_interval", 4)
    writer.add_uint32("qwen35.ssm.conv_kernel", SETTINGS["linear_conv_kernel_dim"])
    writer.add_uint32("qwen35.ssm.state_size", SETTINGS["linear_key_head_dim"])
    writer.add_uint32("qwen35.ssm.group_count", SETTINGS["linear_num_key_heads"])
    writer.add_uint32("qwen35.ssm.time_step_rank", SETTINGS["linear_num_value_heads"])
    inner = SETTINGS["linear_num_value_heads"] * SETTINGS["linear_value_head_dim"]
    writer.add_uint32("qwen35.ssm.inner_size", inner)
    writer.add_tokenizer_model("none")


def _gguf_name(name: str) -> str:
    top = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in top:
        return top[name]
    _, _, layer, rest = name.split(".", 3)
    if rest.startswith("linear_attn."):
        target = _LINEAR[rest.removeprefix("linear_attn.")]
    elif rest in _OTHERS:
        target = _OTHERS[rest]
    elif rest.startswith("mlp."):
        target = "ffn_" + rest.removeprefix("mlp.").replace("_proj", "")
    else:
        target = "attn_" + rest.removeprefix("self_attn.").replace("_proj", "")
    return f"blk.{layer}.{target}"


if __name__ == "__main__":
    main()
