"""Wrong versions of the CUDA kernels, as a change of their source text, and the checks that must notice.

Those of one round are tried in one process: the checks of each read no other's change.
"""

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType


@dataclass(frozen=True, slots=True)
class Mutation:
    """In the module, `old` becomes `new`."""

    round: int
    module: str
    old: str
    new: str
    checks: tuple[str, ...]


_UNPACK, _MATVEC, _EXPAND = (f"neuron.kernels.quant.cuda.{name}" for name in ("unpack", "matvec", "expand"))
_NORM, _ROPE, _ATTEND, _GATE = (f"neuron.kernels.fused.{name}.cuda" for name in ("rms_norm", "rope", "attend", "gate"))
_CHANGES: dict[str, tuple[int, str, str, str, tuple[str, ...]]] = {
    "runs one after another": (1, _UNPACK, "Q4_K: (8, 32, _q4_k)", "Q4_K: (16, 16, _q4_k)", ("product Q4_K",)),
    "fifth bits of the first half": (1, _UNPACK, "_spread(bits, 16 + ", "_spread(bits, ", ("product Q5_0",)),
    "no top bits of late scales": (1, _UNPACK, "2 * (pair >> 1)", "0 * (pair >> 1)", ("product Q5_K",)),
    "unsigned scales": (1, _UNPACK, "& 255) ^ 128) - np.float32(128.0)", "& 255))", ("product Q6_K",)),
    "the mask adds": (1, _UNPACK, "np.float32(-4.0) * factor", "np.float32(0.0) * factor", ("product Q3_K",)),
    "the last rows twice": (2, _MATVEC, "words.shape[0] - 1) &", "words.shape[0] - 2) &", ("product Q8_0",)),
    "rows of a block one apart": (
        2,
        _MATVEC,
        "first_x = cuda.blockIdx.x * rows",
        "first_x = cuda.blockIdx.x",
        ("tall product Q4_K",),
    ),
    "one token's embedding for all": (1, _EXPAND, "rows[target]", "rows[0]", ("embedding Q4_0",)),
    "nothing is added": (1, _NORM, "x[row, i] = value", "pass", ("norm after a sum",)),
    "rotation the other way": (1, _ROPE, "if later == 1 else", "if later == 0 else", ("rope", "rope of neighbours")),
    "values turned too": (2, _ROPE, "2 * half and head < heads + kv_heads:", "2 * half:", ("rope",)),
    "one position too many": (1, _ATTEND, "index[token] + 1", "index[token] + 2", ("attention",)),
    "no fading of earlier tiles": (2, _ATTEND, "sums[i] *= fades[i // 3]", "pass", ("attention",)),
    "parts joined as they are": (
        3,
        _ATTEND,
        "weight = math.exp(found - peak)",
        "weight = 1",
        ("attention with a gate",),
    ),
    "no gate": (4, _ATTEND, "if gated:", "if False:", ("attention with a gate",)),
    "sigmoid alone": (1, _GATE, "factor *= value", "pass", ("silu product",)),
}
MUTATIONS = {name: Mutation(*change) for name, change in _CHANGES.items()}


def apply(mutations: list[Mutation]) -> None:
    """Import the modules from the changed text. Call before anything has imported them."""
    for name in dict.fromkeys(mutation.module for mutation in mutations):
        changes = [(mutation.old, mutation.new) for mutation in mutations if mutation.module == name]
        apply_text(name, *changes)


def apply_text(name: str, *changes: tuple[str, str]) -> None:
    assert name not in sys.modules
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text()
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    module = ModuleType(name)
    module.__file__ = spec.origin
    sys.modules[name] = module
    exec(compile(source, spec.origin, "exec"), module.__dict__)
    parent, _, leaf = name.rpartition(".")
    importlib.import_module(parent).__dict__[leaf] = module
