"""What `quant` makes of safetensors while they are loaded: names, spellings, and the type that each matrix gets. Pure.

Read by preflight (how many bytes will it be?) and by the loader (make it so).
"""

import re
from collections.abc import Mapping

from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.formats.model_config import ModelConfig

#: A model of no more weights is kept in float32 unless a load asks for something else: 64 MiB at most, which a step
#: reads in about 2 ms of one channel of memory, and there is nothing to be gained by rounding.
SMALL_WEIGHTS = 1 << 24

FLOATS = (GgmlType.F32, GgmlType.F16, GgmlType.BF16)

#: The conversions that are offered, by the name that jobs carry.
IN_SITU: Mapping[str, GgmlType] = {
    name: GgmlType[name.upper()] for name in "q4_0 q4_1 q5_0 q5_1 q8_0 q2_k q3_k q4_k q5_k q6_k bf16 f16 f32".split()
}
#: File names of GGUF that mean a mixture around one type; here every matrix gets that type.
MIXTURES: Mapping[str, str] = {
    "q2ks": "q2_k",
    "q3ks": "q3_k",
    "q3km": "q3_k",
    "q3kl": "q3_k",
    "q4ks": "q4_k",
    "q4km": "q4_k",
    "q5ks": "q5_k",
    "q5km": "q5_k",
}
_SPELLINGS: Mapping[str, str] = {name.replace("_", ""): name for name in IN_SITU} | {"fp16": "f16", "fp32": "f32"}

#: Blocks of 256 do not fit every row; these of 32 are the next finer ones (llama.cpp's choice too, but for Q2 and Q3).
_SMALLER_BLOCKS: Mapping[GgmlType, GgmlType] = {
    GgmlType.Q2_K: GgmlType.Q4_0,
    GgmlType.Q3_K: GgmlType.Q4_0,
    GgmlType.Q4_K: GgmlType.Q5_0,
    GgmlType.Q5_K: GgmlType.Q5_1,
    GgmlType.Q6_K: GgmlType.Q8_0,
}
#: Never made blocks: the embedding (and with it a tied head) and the small projections of decay and write strength.
_KEPT = ("embed_tokens.weight", "in_proj_a.weight", "in_proj_b.weight")


def in_situ_name(quant: str) -> str | None:
    """The name in IN_SITU that `quant` spells (case, underscores and dashes do not count), or None."""
    bare = re.sub(r"[^a-z0-9]", "", quant.lower())
    return _SPELLINGS.get(bare) or MIXTURES.get(bare)


def is_mixture(quant: str) -> bool:
    """Whether `quant` names a mixture of types, of which only the main one is made."""
    return re.sub(r"[^a-z0-9]", "", quant.lower()) in MIXTURES


def effective_quant(config: ModelConfig, quant: str | None) -> str | None:
    """What a load of `quant` makes of a model's matrices; None keeps them as they are stored."""
    return "f32" if quant is None and config.matrix_weights <= SMALL_WEIGHTS else quant


def resident_type(quant: GgmlType, name: str, cols: int) -> GgmlType | None:
    """The type that the matrix `name` with rows of `cols` weights gets; None: it stays as it is stored."""
    if quant in FLOATS:
        return quant
    if name.endswith(_KEPT):
        return None
    kind = quant if cols % quant.block_size == 0 else _SMALLER_BLOCKS.get(quant, quant)
    return kind if cols % kind.block_size == 0 else None
