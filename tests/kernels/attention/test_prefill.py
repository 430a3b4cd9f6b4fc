"""Prefill attention against plain float64 softmax, for every position of a chunk and whatever the mask's bound."""

import math

import numpy as np
import pytest
import torch

from neuron.kernels.attention import prefill
from neuron.kernels.attention.cache import KvCache
from neuron.kernels.formats.ggml_types import GgmlType


@pytest.mark.parametrize(("position", "n"), [(0, 33), (7, 1), (40, 50), (1, 64)])
@pytest.mark.parametrize("bound", [1 << 24, 100])
def test_attention_equals_the_softmax_formula(
    position: int, n: int, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill, "MASK_ELEMENTS", bound)
    random = np.random.default_rng(0)
    heads, kv_heads, dim, length = 6, 2, 24, position + n
    cache = KvCache(GgmlType.F32, 2, kv_heads, dim, 128)
    cache.rows[:, :, :, :length] = random.standard_normal((2, 2, kv_heads, length, dim))
    query = random.standard_normal((heads, n, dim)).astype(np.float32)
    found = prefill.attend(torch.from_numpy(query), cache, 1, position, dim**-0.5)
    keys, values = (cache.rows[1, which, :, :length].astype(np.float64).repeat(3, axis=0) for which in (0, 1))
    scores = query @ keys.transpose(0, 2, 1) / math.sqrt(dim)
    scores[:, np.arange(length)[None] > np.arange(position, length)[:, None]] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = (weights / weights.sum(-1, keepdims=True)) @ values
    np.testing.assert_allclose(found.numpy(), expected.transpose(1, 0, 2).reshape(n, -1), atol=1e-5)
    cache.close()
