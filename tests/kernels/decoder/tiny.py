"""Tiny random models made by transformers, saved as safetensors, and their float32 logits."""

import copy
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import transformers

from neuron.kernels.engine import DeviceModel, LoadSpec
from neuron.kernels.load import load_model

Floats = npt.NDArray[np.float32]

VOCAB = 97
BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.25,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}


def tiny(folder: Path, family: str, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """Save a random model of `family` ("Llama", "Qwen2", "Qwen3") to `folder`; returns it in evaluation mode."""
    config_type = getattr(transformers, f"{family}Config")
    torch.manual_seed(seed)
    model = getattr(transformers, f"{family}ForCausalLM")(config_type(**{**BASE, **changes}))
    for name, parameter in model.named_parameters():
        # Norms and biases start at one and zero, which would hide a mistake in them.
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.2)
    copy.deepcopy(model).to(dtype).save_pretrained(folder)
    # Parameters only: the buffer of rope frequencies would be rounded too.
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype).float()
    return model.eval()


def load(folder: Path, quant: str | None = "f32", max_context: int = 1024, threads: int = 2) -> DeviceModel:
    files = tuple(sorted(folder.glob("*.safetensors")))
    spec = LoadSpec("safetensors", files, max_context, folder / "config.json", quant)
    return load_model(spec, "cpu", lambda stage, fraction: None, threads=threads)


def reference(model: Any, ids: npt.NDArray[np.int32]) -> Floats:
    """Logits float32 [len(ids), vocab]."""
    with torch.inference_mode():
        found = model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0]
    result: Floats = found.float().numpy()
    return result


class Forwards(Protocol):
    """What `run` needs of a model."""

    vocab_size: int

    def forward(
        self, sequence: int, tokens: npt.NDArray[np.int32], position: int, logits: Floats | None, /
    ) -> None: ...
    def clear(self, sequence: int, /) -> int: ...


def run(model: Forwards, ids: npt.NDArray[np.int32], chunk: int, sequence: int = 0) -> Floats:
    """Logits of the last position, after `ids` in chunks."""
    logits = np.full(model.vocab_size, np.nan, dtype=np.float32)
    model.clear(sequence)
    for start in range(0, len(ids), chunk):
        part = ids[start : start + chunk]
        model.forward(sequence, part, start, logits if start + chunk >= len(ids) else None)
    return logits


def some_ids(count: int, seed: int = 0) -> npt.NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, VOCAB, count, dtype=np.int32)
