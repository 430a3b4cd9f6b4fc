"""The tiny models of every architecture that the layered engine is tested with, and what transformers says of them."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.kernels.decoder import tiny as dense
from tests.kernels.decoder.tiny import Floats, some_ids
from tests.kernels.hybrid import tiny as hybrid

LINEAR, FULL = "linear_attention", "full_attention"
#: Heads that four ranks can share, key-value and key heads partly by holding the same ones.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True, "num_hidden_layers": 1, "num_key_value_heads": 1}),
    "qwen3": ("Qwen3", {"head_dim": 32, "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 1}),
    "hybrid": ("hybrid", {"linear_num_value_heads": 8, "layer_types": [LINEAR, FULL]}),
    "hybrid-biased": ("hybrid", {"attention_bias": True, "linear_num_value_heads": 8, "layer_types": [FULL, LINEAR]}),
    "hybrid-tied": (
        "hybrid",
        {
            "tie_word_embeddings": True,
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 4,
            "linear_conv_kernel_dim": 2,
            "num_key_value_heads": 1,
            "layer_types": [FULL, LINEAR],
        },
    ),
}
LENGTHS = (1, 2, 5, 63, 64, 65, 130)
STEPS = 50


def make(folder: Path, name: str, **changes: Any) -> Any:
    """Save the model to `folder`; returns transformers' own."""
    family, settings = MODELS[name]
    if family == "hybrid":
        return hybrid.tiny_hybrid(folder, **{**settings, **changes})
    return dense.tiny(folder, family, **{**settings, **changes})


def wanted(model: Any, ids: npt.NDArray[np.int32]) -> Floats:
    """Logits float32 [len(ids), vocab] of transformers."""
    reference = hybrid.reference if hasattr(model.config, "linear_num_key_heads") else dense.reference
    return reference(model, ids)


def check_lengths(model: Any, rows: Floats) -> None:
    """Every length, in one piece, by chunks of 64 and 7; the shortest ones by single tokens too."""
    ids = some_ids(max(LENGTHS))
    for length in LENGTHS:
        for chunk in (length, 64, 7, *((1,) if length <= 5 else ())):
            found = dense.run(model, ids[:length], chunk)
            np.testing.assert_allclose(found, rows[length - 1], atol=1e-4, rtol=0, err_msg=f"{length} by {chunk}")


def check_steps(model: Any, rows: Floats, begin: int) -> None:
    """STEPS single tokens after `begin` of them."""
    ids = some_ids(max(LENGTHS))
    logits = dense.run(model, ids[:begin], begin)
    for position in range(begin, begin + STEPS):
        model.forward(0, ids[position : position + 1], position, logits)
        np.testing.assert_allclose(logits, rows[position], atol=1e-4, rtol=0, err_msg=f"{position}")
