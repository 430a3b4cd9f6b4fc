"""Span: where the tokens of one pass stand in their sequence, as every layer of the pass sees it."""

from dataclasses import dataclass

import torch


@dataclass(slots=True, frozen=True)
class Span:
    """`n` tokens after the `start` that are held.

    `index` int64 [n]: their positions; `rope` float32 [n, 2, rotary_dim / 2]: cosines and sines; both on the device.
    `replayed`: the pass may be recorded once and run for other positions, so that only the tensors count.
    """

    start: int
    n: int
    index: torch.Tensor
    rope: torch.Tensor
    replayed: bool = False
