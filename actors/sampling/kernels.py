"""Compiled loops over one logits row. Called by the sampler only; numba is imported when `kernels()` is first called.

The row is cut into blocks of `BLOCK` logits whose maxima are known: blocks that cannot matter are never read.
"""

import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

BLOCK = 1024
#: A block whose largest weight is exp(-this) adds less than 1e-8 of the total, all such blocks together.
NEGLIGIBLE = 36.0

#: Buckets of weights up to 1.0 by the upper half of their bits (each 0.8 % wide).
BUCKETS = 0x3F80 + 1

FloatRow = npt.NDArray[np.float32]
IdRow = npt.NDArray[np.int32]
SumRow = npt.NDArray[np.float64]


class Kernels(NamedTuple):
    """Compiled; shapes: row [n] float32, maxima [blocks] float32, sums [blocks] float64, ids and values [n].

    `scan(row, maxima) -> top` fills the blocks' maxima and returns the largest of all; NaN when any logit is.
    `block_sums(row, maxima, top, scale, sums) -> total` of exp((row - top) * scale), and per block.
    `gather(row, maxima, threshold, ids, values) -> count` of logits >= threshold, in order of ids; it stops, full,
    when there are as many as `ids` holds.
    `pick(row, sums, top, scale, target) -> id` where the running weight passes `target`.
    `weigh(row, top, scale, weights)` fills float32 weights [n].
    `mass_above(weights, least) -> mass` of weights >= least.
    `bucket_masses(weights, masses)`: the weights' sums by the upper 16 bits of the float, masses [BUCKETS]; positive
    floats are ordered like their bits.
    `pick_above(weights, least, target) -> id` where the running weight of those >= least passes `target`.
    `draw_few(ids, values, k, top, scale, top_p, min_p, total, share) -> id`: sorts the candidates in place, most
    likely first, keeps `k`, then top-p of `total` (0: of their own sum), then min-p, then draws at `share` in [0, 1).
    """

    scan: Callable[[FloatRow, FloatRow], float]
    block_sums: Callable[[FloatRow, FloatRow, np.float32, np.float32, SumRow], float]
    gather: Callable[[FloatRow, FloatRow, np.float32, IdRow, FloatRow], int]
    pick: Callable[[FloatRow, SumRow, np.float32, np.float32, float], int]
    weigh: Callable[[FloatRow, np.float32, np.float32, FloatRow], None]
    mass_above: Callable[[FloatRow, np.float32], float]
    bucket_masses: Callable[[FloatRow, SumRow], None]
    pick_above: Callable[[FloatRow, np.float32, float], int]
    draw_few: Callable[[IdRow, FloatRow, int, np.float32, np.float32, float, float, float, float], int]


_lock = threading.Lock()
_built: list[Kernels] = []


def ready() -> bool:
    """Whether `kernels` returns at once."""
    return bool(_built)


def kernels() -> Kernels:
    """Built once; the first call imports numba and reads the machine code that an earlier process kept, or compiles."""
    if _built:
        return _built[0]
    with _lock:
        if not _built:
            from neuron.actors.sampling import loops

            found = Kernels(**{name: getattr(loops, name) for name in Kernels._fields})
            _compile(found)
            _built.append(found)
    return _built[0]


def _compile(built: Kernels) -> None:
    """One call each, with the types of real rows."""
    row = np.linspace(-3.0, 3.0, 2 * BLOCK - 7, dtype=np.float32)
    maxima, sums = np.empty(2, np.float32), np.zeros(2, np.float64)
    one, top = np.float32(1.0), np.float32(built.scan(row, maxima))
    total = built.block_sums(row, maxima, top, one, sums)
    built.pick(row, sums, top, one, total / 2)
    ids, values = np.empty(row.size, np.int32), np.empty_like(row)
    found = built.gather(row, maxima, top - one, ids, values)
    built.draw_few(ids[:found], values[:found], 2, top, one, 0.9, 0.1, 0.0, 0.5)
    weights = np.empty_like(row)
    built.weigh(row, top, one, weights)
    built.bucket_masses(weights, np.empty(BUCKETS, np.float64))
    least = np.float32(0.5)
    built.pick_above(weights, least, built.mass_above(weights, least) / 2)
