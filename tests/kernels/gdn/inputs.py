"""Random inputs of the five operations, in float64, and adversarial ones."""

from dataclasses import dataclass

import numpy as np

from neuron.kernels.gdn.recurrent.naive import Array, l2_normalised


@dataclass(slots=True)
class Rule:
    """Arguments of the delta rule, as recurrent.naive takes them."""

    q: Array
    k: Array
    v: Array
    g: Array
    beta: Array
    state: Array

    def arguments(self) -> tuple[Array, Array, Array, Array, Array, Array]:
        return self.q, self.k, self.v, self.g, self.beta, self.state


def rule(
    tokens: int, key_heads: int = 2, ratio: int = 2, key_width: int = 16, value_width: int = 8, seed: int = 0
) -> Rule:
    random = np.random.default_rng(seed)
    heads = key_heads * ratio
    return Rule(
        l2_normalised(random.standard_normal((tokens, key_heads, key_width))),
        l2_normalised(random.standard_normal((tokens, key_heads, key_width))),
        random.standard_normal((tokens, heads, value_width)),
        -random.exponential(0.1, (tokens, heads)),
        1 / (1 + np.exp(-random.standard_normal((tokens, heads)))),
        random.standard_normal((heads, key_width, value_width)) * 0.3,
    )


def alike(tokens: int, key_width: int = 16, value_width: int = 8) -> Rule:
    """Repetitive text: keys almost equal, beta almost 1, no decay. Powers of the chunk's matrix explode on it."""
    made = rule(tokens, 2, 2, key_width, value_width, seed=5)
    random = np.random.default_rng(6)
    key = random.standard_normal((1, 2, key_width))
    made.k = l2_normalised(key + 1e-3 * random.standard_normal(made.k.shape))
    made.beta = np.full(made.beta.shape, 0.9999)
    made.g = np.full(made.g.shape, -1e-6)
    return made


def forgetful(tokens: int) -> Rule:
    """Decays down to exp(-90) a token: sums of their logarithms leave the range of exp in both directions."""
    made = rule(tokens, seed=7)
    made.g = -np.random.default_rng(8).choice([1e-4, 1.0, 30.0, 90.0], made.g.shape)
    return made


def worst(found: Array, wanted: Array) -> float:
    """Largest difference; infinite when a number is not finite."""
    difference = np.abs(found.astype(np.float64) - wanted)
    return float(difference.max()) if np.isfinite(found).all() else float("inf")
