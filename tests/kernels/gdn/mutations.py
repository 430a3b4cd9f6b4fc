"""Wrong versions of the CUDA kernels, as a change of their source text, and the checks that must notice."""

from dataclasses import dataclass

from tests.kernels.cuda.mutations import apply_text


@dataclass(frozen=True, slots=True)
class Mutation:
    """In `operation`'s cuda.py, `old` becomes `new`."""

    operation: str
    old: str
    new: str
    checks: tuple[str, ...]


_DECODES = ("decode", "decode with tiled heads")
MUTATIONS: dict[str, Mutation] = {
    "nothing but the linear part of softplus": Mutation("gating", "x > _LINEAR", "x > -1e9", ("gating", *_DECODES)),
    "no bias before softplus": Mutation("gating", "x = a + dt_bias", "x = a", ("gating", *_DECODES)),
    "the newest input met by the oldest tap": Mutation(
        "conv_update", "weight[taps - 1, channel]", "weight[0, channel]", ("conv_update", *_DECODES)
    ),
    "a ring one row off": Mutation("conv_update", "newest + 1 + j", "newest + j", ("conv_update", *_DECODES)),
    "inputs before the first row forgotten": Mutation(
        "conv_full", "ring[(position + source) % taps, channel] * weight", "ZERO * weight", ("conv_full",)
    ),
    "no decay": Mutation("recurrent", "held[r] *= decay", "held[r] *= 1", ("recurrent",)),
    "output read before the update": Mutation(
        "recurrent", "held[r] += key[first + r] * update\n", "pass\n", ("recurrent",)
    ),
    "powers instead of substitution": Mutation(
        "chunk",
        "value -= lower[i, j] * solved[j, thread]",
        "value -= lower[i, j] * (1.0 if j == thread else 0.0)",
        ("chunk", "chunk with like keys"),
    ),
    "no state from the chunk before": Mutation("chunk", "held[r, column] * fade", "ZERO", ("chunk",)),
    "epsilon left of the root": Mutation("decode", "+ norm_epsilon)", "+ norm_epsilon + 0.1)", _DECODES),
    "no norm of the key": Mutation(
        "decode", "key_factor = np.float32(1.0) /", "key_factor = np.float32(1.0) + 0 *", _DECODES
    ),
    "always grouped": Mutation("decode", "if tiled:", "if False:", ("decode with tiled heads",)),
    "the ring is not written": Mutation("decode", "ring[newest, channel] = value", "pass", _DECODES),
}


def apply(mutation: Mutation) -> None:
    """Import the operation's module from the changed text. Call before anything has imported it."""
    apply_text(f"neuron.kernels.gdn.{mutation.operation}.cuda", (mutation.old, mutation.new))
