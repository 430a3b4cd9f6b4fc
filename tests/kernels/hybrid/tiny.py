"""Tiny random hybrid models made by transformers, saved as safetensors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from safetensors.torch import save_file

from tests.kernels.decoder.tiny import VOCAB, Floats

BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "max_position_embeddings": 1024,
    "initializer_range": 0.25,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [4, 2, 2],
        "mrope_interleaved": True,
    },
}


def tiny_hybrid(folder: Path, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """Save a random Qwen3_5ForCausalLM to `folder`; returns it in float32 and evaluation mode."""
    settings = {**BASE, **changes}
    settings["num_hidden_layers"] = len(settings["layer_types"])
    torch.manual_seed(seed)
    model = transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(**settings))
    scramble(model)
    model = model.to(dtype)
    model.save_pretrained(folder)
    return model.float().eval()


def scramble(model: Any) -> None:
    """Norms, decays and biases start at one, zero or equal values, which would hide a mistake in them."""
    for name, parameter in model.named_parameters():
        if name.endswith("linear_attn.norm.weight"):
            torch.nn.init.normal_(parameter, 1.0, 0.2)
        elif "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(parameter, 0.0, 0.2)
        elif name.endswith("A_log"):
            torch.nn.init.uniform_(parameter, -3.0, 1.0)


def reference(model: Any, ids: npt.NDArray[np.int32]) -> Floats:
    """Logits float32 [len(ids), vocab], without the cache, which wants a full-attention layer."""
    with torch.inference_mode():
        found = model(torch.from_numpy(ids.astype(np.int64))[None], use_cache=False).logits[0]
    result: Floats = found.float().numpy()
    return result


def tiny_conditional(folder: Path) -> Any:
    """A Qwen3_5ForConditionalGeneration on disk, with a vision tower and an mtp tensor; returns its text model."""
    text = tiny_hybrid(folder)
    tensors = {}
    for name, value in text.state_dict().items():
        inner = name.removeprefix("model.")
        tensors[name if inner == name else f"model.language_model.{inner}"] = value.contiguous().clone()
    tensors["mtp.fc.weight"] = torch.zeros(2, 2)
    tensors["model.visual.patch_embed.proj.weight"] = torch.zeros(4, 4)
    for old in folder.glob("*.safetensors"):
        old.unlink()
    save_file(tensors, folder / "model.safetensors")
    inner_config = json.loads((folder / "config.json").read_text())
    outer = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": inner_config,
        "language_model_only": True,
        "vision_config": {"depth": 1, "hidden_size": 32},
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(outer))
    return text
