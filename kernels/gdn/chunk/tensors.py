"""The gated delta rule in chunks on tensors of any device: batched products and one triangular solve. All float32.

A solve by substitution and never powers of the matrix, which explode when keys are alike.
"""

import torch

from neuron.kernels.gdn.chunk.cpu import CHUNK


def chunked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Whole chunks of every head; `state` [Hv, K, V] in place, `out` [Hv, n, V].

    q, k [Hk, n, K], normalised, q divided by sqrt(K); v [Hv, n, V]; g (log decay), beta [Hv, n]; n a multiple of
    CHUNK. With c the running sum of g in a chunk and L the unit lower triangle of
    beta_i exp(c_i - c_j) k_i.k_j: L w = beta exp(c) k, L u = beta v; then for each chunk in turn
    u -= w S; o = exp(c) q S + (q k^T exp(c_i - c_j)) u; S = exp(c_last) S + (exp(c_last - c) k)^T u
    (https://arxiv.org/abs/2412.06464, section 3.3).
    """
    key_heads, n, width = k.shape
    heads, _, columns = v.shape
    ratio, count = heads // key_heads, n // CHUNK
    total = g.reshape(heads, count, CHUNK).cumsum(-1)
    # Masked before the exponential: differences above the diagonal are positive and overflow.
    difference = total[..., :, None] - total[..., None, :]
    future = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=g.device).triu_(1)
    fading = difference.masked_fill_(future, -torch.inf).exp_()
    keys, queries = (x.reshape(key_heads, 1, count, CHUNK, width) for x in (k, q))
    grouped = fading.view(key_heads, ratio, count, CHUNK, CHUNK)
    strength = beta.reshape(key_heads, ratio, count, CHUNK, 1)
    # The solve reads only what is below the diagonal, and takes the diagonal for ones.
    lower = (keys @ keys.transpose(-1, -2)) * grouped * strength
    mixing = (queries @ keys.transpose(-1, -2)) * grouped
    since = total.view(key_heads, ratio, count, CHUNK, 1).exp()
    right = torch.cat([keys * (strength * since), v.reshape(key_heads, ratio, count, CHUNK, columns) * strength], -1)
    solved = torch.linalg.solve_triangular(lower, right, upper=False, unitriangular=True)
    solved = solved.view(heads, count, CHUNK, width + columns)
    read = (queries * since).view(heads, count, CHUNK, width)
    until = (total[..., -1:] - total).exp().view(key_heads, ratio, count, CHUNK, 1)
    written = (keys * until).view(heads, count, CHUNK, width).transpose(-1, -2)
    kept = total[..., -1].exp()[..., None, None]
    mixing = mixing.view(heads, count, CHUNK, CHUNK)
    result = out.view(heads, count, CHUNK, columns)
    for c in range(count):
        update = torch.baddbmm(solved[:, c, :, width:], solved[:, c, :, :width], state, alpha=-1)
        result[:, c] = torch.baddbmm(read[:, c] @ state, mixing[:, c], update)
        state.mul_(kept[:, c]).baddbmm_(written[:, c], update)
