"""Causal attention of many queries of one sequence over its cache, with the library's kernels."""

import numpy as np
import torch

from neuron.kernels.attention.cache import KvCache
from neuron.kernels.formats.ggml_types import GgmlType


def attend(query: torch.Tensor, cache: KvCache, layer: int, position: int, scale: float) -> torch.Tensor:
    """query [heads, n, head_dim] at positions position..position+n-1, whose rows are in the cache already.

    Returns [n, heads * head_dim] in the query's type.
    """
    heads, n, dim = query.shape
    length = position + n
    keys, values = (_rows(cache, layer, which, length).to(query.dtype) for which in (0, 1))
    kv_heads = keys.shape[0]
    group = heads // kv_heads
    visible = torch.arange(length)[None, :] <= torch.arange(position, length)[:, None]
    folded = query.reshape(kv_heads, 1, group * n, dim)
    mask = visible.repeat(group, 1)
    mixed = torch.nn.functional.scaled_dot_product_attention(
        folded, keys[:, None], values[:, None], attn_mask=mask, scale=scale
    )
    return mixed.view(heads, n, dim).transpose(0, 1).reshape(n, heads * dim)


def _rows(cache: KvCache, layer: int, which: int, length: int) -> torch.Tensor:
    rows = torch.from_numpy(np.asarray(cache.rows[layer, which, :, :length]))
    return rows.view(torch.bfloat16) if cache.kind is GgmlType.BF16 else rows
