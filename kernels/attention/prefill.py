"""Causal attention of many queries of one sequence over its cache, with the library's kernels."""

from functools import lru_cache

import numpy as np
import torch

from neuron.kernels.attention.cache import KvCache
from neuron.kernels.formats.ggml_types import GgmlType

#: Bounds the mask, whatever the context: with more, queries are taken in parts.
MASK_ELEMENTS = 1 << 24


def attend(query: torch.Tensor, cache: KvCache, layer: int, position: int, scale: float) -> torch.Tensor:
    """query [heads, n, head_dim] at positions position..position+n-1, whose rows are in the cache already.

    Returns [n, heads * head_dim] in the query's type. The heads of a group read the same keys; none are copied.
    """
    length = position + query.shape[1]
    keys, values = (_rows(cache, layer, which, length).to(query.dtype) for which in (0, 1))
    return attend_rows(query, keys, values, position, scale)


def attend_rows(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, position: int, scale: float
) -> torch.Tensor:
    """`attend` over keys and values [kv heads, position + n, head_dim], all of one type and device."""
    heads, n, dim = query.shape
    kv_heads, length = keys.shape[0], position + n
    rows = max(16, MASK_ELEMENTS // length)
    if position and n > rows:
        parts = []
        for at in range(0, n, rows):
            end = position + min(at + rows, n)
            parts.append(attend_rows(query[:, at : at + rows], keys[:, :end], values[:, :end], position + at, scale))
        return torch.cat(parts)
    shared = (kv_heads, heads // kv_heads, length, dim)
    masked = position > 0 and n > 1
    mixed = torch.nn.functional.scaled_dot_product_attention(
        query.reshape(kv_heads, heads // kv_heads, n, dim),
        keys[:, None].expand(shared),
        values[:, None].expand(shared),
        attn_mask=_mask(position, n, query.dtype, query.device) if masked else None,
        is_causal=position == 0 and n > 1,
        scale=scale,
    )
    return mixed.reshape(heads, n, dim).transpose(0, 1).reshape(n, heads * dim)


@lru_cache(maxsize=1)
def _mask(position: int, n: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[n, position + n]: 0 where a query may look, else -inf. One is kept, since every layer of a chunk asks for it."""
    columns = torch.arange(position + n, device=device)
    hidden = columns[None, :] > columns[position:, None]
    return torch.zeros(n, position + n, dtype=dtype, device=device).masked_fill(hidden, -torch.inf)


def _rows(cache: KvCache, layer: int, which: int, length: int) -> torch.Tensor:
    rows = torch.from_numpy(np.asarray(cache.rows[layer, which, :, :length]))
    return rows.view(torch.bfloat16) if cache.kind is GgmlType.BF16 else rows
