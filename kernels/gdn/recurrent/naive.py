"""Reference of the gated delta rule, one token after the other, in the float type of its inputs. For tests."""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating]

L2_EPSILON = 1e-6


def l2_normalised(x: Array) -> Array:
    """x [..., K] / sqrt(sum x^2 + 1e-6): the epsilon is inside the root."""
    normalised: Array = x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + L2_EPSILON)
    return normalised


def recurrent(q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array) -> tuple[Array, Array]:
    """Outputs [T, Hv, V] and the state [Hv, K, V] after T tokens.

    q, k [T, Hk, K] normalised; v [T, Hv, V]; g = log decay [T, Hv]; beta [T, Hv]. Per head and token
    (https://arxiv.org/abs/2412.06464): S *= exp(g); S += k (beta (v - k.S))^T; o = q.S / sqrt(K).
    """
    tokens, key_heads, width = q.shape
    ratio = v.shape[1] // key_heads
    state = state.copy()
    out = np.empty(v.shape, dtype=v.dtype)
    for t in range(tokens):
        for h in range(v.shape[1]):
            key, query = k[t, h // ratio], q[t, h // ratio]
            state[h] *= np.exp(g[t, h])
            update = beta[t, h] * (v[t, h] - key @ state[h])
            state[h] += np.outer(key, update)
            out[t, h] = query @ state[h] * width**-0.5
    return out, state
