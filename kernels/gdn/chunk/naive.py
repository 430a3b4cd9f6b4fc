"""Reference of the chunked gated delta rule: one head at a time, plain forward substitution. For tests."""

import numpy as np

from neuron.kernels.gdn.recurrent.naive import Array


def chunked(q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array, chunk: int = 64) -> tuple[Array, Array]:
    """As recurrent.naive.recurrent, by chunks: the updates of a chunk solve a unit lower triangular system.

    u_i = beta_i (v_i - exp(c_i) k_i.S - sum over j < i of exp(c_i - c_j) (k_i.k_j) u_j), c = running sum of g
    (https://arxiv.org/abs/2412.06464, section 3.3).
    """
    state = state.copy()
    out = np.empty(v.shape, dtype=v.dtype)
    ratio = v.shape[1] // k.shape[1]
    for start in range(0, q.shape[0], chunk):
        part = slice(start, start + chunk)
        for h in range(v.shape[1]):
            query, key = q[part, h // ratio], k[part, h // ratio]
            out[part, h], state[h] = _one(query, key, v[part, h], g[part, h], beta[part, h], state[h])
    return out, state


def _one(q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array) -> tuple[Array, Array]:
    count = len(g)
    total = np.cumsum(g)
    update = np.zeros(v.shape, dtype=v.dtype)
    out = np.empty(v.shape, dtype=v.dtype)
    for i in range(count):
        weight = np.exp(total[i] - total[:i])
        seen = np.exp(total[i]) * (k[i] @ state) + (weight * (k[:i] @ k[i])) @ update[:i]
        update[i] = beta[i] * (v[i] - seen)
        weight = np.exp(total[i] - total[: i + 1])
        mixed = np.exp(total[i]) * (q[i] @ state) + (weight * (k[: i + 1] @ q[i])) @ update[: i + 1]
        out[i] = mixed * q.shape[1] ** -0.5
    weight = np.exp(total[-1] - total)[:, None]
    return out, np.exp(total[-1]) * state + (weight * k).T @ update
