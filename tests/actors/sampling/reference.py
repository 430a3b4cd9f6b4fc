"""The oracle: a plain float64 sampler's final distribution, written from the definitions and sharing no code."""

import numpy as np
import numpy.typing as npt

from neuron.actors.sampling.params import ResolvedSampling

Floats = npt.NDArray[np.float64]


def edited(logits: npt.ArrayLike, params: ResolvedSampling, prompt: list[int], answer: list[int]) -> Floats:
    """Penalties, then bias."""
    row = np.array(logits, np.float64)
    window = (prompt + answer)[-params.repeat_last_n :] if params.repeat_last_n > 0 else prompt + answer
    if params.repeat_last_n == 0:
        window = []
    for token in set(window):
        row[token] = (
            row[token] / params.repetition_penalty if row[token] > 0 else row[token] * params.repetition_penalty
        )
    for token in set(answer):
        row[token] -= params.presence_penalty + params.frequency_penalty * answer.count(token)
    for token, value in params.logit_bias:
        row[token] += value
    return row


def distribution(row: Floats, params: ResolvedSampling) -> Floats:
    """Temperature, top-k, top-p, min-p, each renormalised; ties go to the smaller id."""
    if params.temperature <= 1e-3:
        point = np.zeros_like(row)
        point[int(np.argmax(row))] = 1.0
        return point
    scaled = row / params.temperature
    p = np.exp(scaled - scaled.max())
    p /= p.sum()
    order = np.lexsort((np.arange(p.size), -row))
    keep = order[: params.top_k] if params.top_k > 0 else order
    kept = p[keep] / p[keep].sum()
    if params.top_p < 1.0:
        reached = np.cumsum(kept) >= params.top_p
        count = int(np.argmax(reached)) + 1 if reached.any() else kept.size
        keep, kept = keep[:count], kept[:count]
    if params.min_p > 0.0:
        mask = kept >= params.min_p * kept[0]
        keep, kept = keep[mask], kept[mask]
    final: Floats = np.zeros_like(p)
    final[keep] = kept / kept.sum()
    return final
