"""Reference of causal attention over a cache with grouped heads. For tests."""

import numpy as np
import numpy.typing as npt

from neuron.kernels.fused.rms_norm.naive import Array


def attend(query: Array, rows: Array, index: npt.NDArray[np.int64], scale: float) -> Array:
    """out [n, heads, dim] of query [n, heads, dim] over rows [2, kv heads, positions, dim].

    Token t sees positions 0..index[t]. Query head h reads kv head h // (heads / kv heads).
    """
    ratio = query.shape[1] // rows.shape[1]
    out = np.empty_like(query)
    for token, last in enumerate(index):
        for head in range(query.shape[1]):
            keys, values = rows[:, head // ratio, : last + 1]
            scores = keys @ query[token, head] * scale
            weights = np.exp(scores - scores.max())
            out[token, head] = weights @ values / weights.sum()
    return out
