"""Compiled loops over one logits row. Called by the sampler only; numba is imported when `kernels()` is first called.

The row is cut into blocks of `BLOCK` logits whose maxima are known: blocks that cannot matter are never read.
"""

import math
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

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
    """Built once; the first call imports numba and compiles, or reads the cache beside this file."""
    if _built:
        return _built[0]
    with _lock:
        if not _built:
            try:
                _built.append(_build(cache=True))
            except (RuntimeError, OSError):  # Nowhere to keep a cache: read-only without a home, or a full disk.
                _built.append(_build(cache=False))
    return _built[0]


def _build(*, cache: bool) -> Kernels:
    """Closures over one inlined `weight`, so that numba caches and vectorises them together."""
    import numba

    def _jit(function: Callable[..., Any], **options: Any) -> Any:
        return numba.njit(cache=cache, nogil=True, **options)(function)

    def exponential(x):  # type: ignore[no-untyped-def]
        # exp(x) for x <= 0 in float32, relative error 2e-7: Cody-Waite reduction and the polynomial of Cephes' expf.
        # Written out because the library's exp is a call per element; this form vectorises.
        x = max(x, np.float32(-87.0))
        power = np.rint(x * np.float32(1.44269504))
        rest = (x - power * np.float32(0.693359375)) + power * np.float32(2.12194440e-4)
        value = np.float32(1.9875691500e-4)
        value = value * rest + np.float32(1.3981999507e-3)
        value = value * rest + np.float32(8.3334519073e-3)
        value = value * rest + np.float32(4.1665795894e-2)
        value = value * rest + np.float32(1.6666665459e-1)
        value = value * rest + np.float32(5.0000001201e-1)
        value = value * rest * rest + rest + np.float32(1.0)
        return value * np.int32((np.int32(power) + np.int32(127)) << np.int32(23)).view(np.float32)

    weight: Any = _jit(exponential)

    def order(bits):  # type: ignore[no-untyped-def]
        # A float's bits as an integer that is ordered like the float, and back: their maximum vectorises, a float's
        # does not, because of NaN.
        return np.int32(bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))

    ordered: Any = _jit(order)

    def scan(row, maxima):  # type: ignore[no-untyped-def]
        bits, found = row.view(np.int32), maxima.view(np.int32)
        largest, top = np.int32(0), np.int32(-0x80000000)
        for block in range(maxima.shape[0]):
            # Slices, here and below: indices that may be negative are not vectorised well.
            piece = bits[block * BLOCK : min(block * BLOCK + BLOCK, row.shape[0])]
            best = np.int32(-0x80000000)
            for i in range(piece.shape[0]):
                largest = max(largest, np.int32(piece[i] & np.int32(0x7FFFFFFF)))
                best = max(best, ordered(piece[i]))
            found[block] = ordered(best)
            top = max(top, best)
        if largest > np.int32(0x7F800000):
            return np.float32(np.nan)
        return np.int32(ordered(top)).view(np.float32)

    def block_sums(row, maxima, top, scale, sums):  # type: ignore[no-untyped-def]
        total: Any = 0.0
        for block in range(maxima.shape[0]):
            if (maxima[block] - top) * scale < -NEGLIGIBLE:
                sums[block] = 0.0
                continue
            part: Any = np.float32(0.0)
            piece = row[block * BLOCK : min(block * BLOCK + BLOCK, row.shape[0])]
            for i in range(piece.shape[0]):
                part += weight((piece[i] - top) * scale)
            sums[block] = part
            total += part
        return total

    def gather(row, maxima, threshold, ids, values):  # type: ignore[no-untyped-def]
        count = 0
        for block in range(maxima.shape[0]):
            if maxima[block] < threshold:
                continue
            for i in range(block * BLOCK, min(block * BLOCK + BLOCK, row.shape[0])):
                if row[i] >= threshold:
                    if count == ids.shape[0]:
                        return count
                    ids[count] = i
                    values[count] = row[i]
                    count += 1
        return count

    def pick(row, sums, top, scale, target):  # type: ignore[no-untyped-def]
        last = 0
        for block in range(sums.shape[0]):
            if sums[block] <= 0.0:
                continue
            last = block
            if target < sums[block]:
                break
            target -= sums[block]
        chosen = -1
        for i in range(last * BLOCK, min(last * BLOCK + BLOCK, row.shape[0])):
            share = weight((row[i] - top) * scale)
            if share > np.float32(1e-37):
                chosen = i
                target -= share
                if target < 0.0:
                    break
        return chosen

    def weigh(row, top, scale, weights):  # type: ignore[no-untyped-def]
        for i in range(row.shape[0]):
            weights[i] = weight((row[i] - top) * scale)

    def mass(weights, least):  # type: ignore[no-untyped-def]
        total: Any = 0.0
        for begin in range(0, weights.shape[0], BLOCK):
            part: Any = np.float32(0.0)
            for i in range(begin, min(begin + BLOCK, weights.shape[0])):
                part += weights[i] * np.float32(weights[i] >= least)
            total += part
        return total

    def pick_above(weights, least, target):  # type: ignore[no-untyped-def]
        chosen = -1
        for i in range(weights.shape[0]):
            if weights[i] >= least:
                chosen = i
                target -= weights[i]
                if target < 0.0:
                    break
        return chosen

    def sort_few(ids, values):  # type: ignore[no-untyped-def]
        for i in range(1, values.shape[0]):
            token, value, place = ids[i], values[i], i
            while place > 0 and values[place - 1] < value:
                ids[place], values[place] = ids[place - 1], values[place - 1]
                place -= 1
            ids[place], values[place] = token, value

    in_order: Any = _jit(sort_few)

    def draw_few(ids, values, k, top, scale, top_p, min_p, total, share):  # type: ignore[no-untyped-def]
        in_order(ids, values)
        kept = min(k, values.shape[0])
        shares, running = np.empty(kept, np.float64), np.empty(kept, np.float64)
        mass: Any = 0.0
        for i in range(kept):
            shares[i] = math.exp((np.float64(values[i]) - np.float64(top)) * np.float64(scale))
            mass += shares[i]
            running[i] = mass
        whole = total if total > 0.0 else mass
        last = 0
        # The most likely one always stays.
        while last + 1 < kept and running[last] < top_p * whole and shares[last + 1] >= min_p * shares[0]:
            last += 1
        target = share * running[last]
        for i in range(last):
            if target < running[i]:
                return ids[i]
        return ids[last]

    reassociate = {"reassoc", "nsz", "contract", "arcp"}
    mass_above: Any = _jit(mass, fastmath=reassociate)

    def bucket_masses(weights, masses):  # type: ignore[no-untyped-def]
        bits = weights.view(np.int32)
        masses[:] = 0.0
        for i in range(weights.shape[0]):
            masses[bits[i] >> 16] += weights[i]

    built = Kernels(
        _jit(scan),
        _jit(block_sums, fastmath=reassociate),
        _jit(gather),
        _jit(pick),
        _jit(weigh, fastmath=reassociate),
        mass_above,
        _jit(bucket_masses),
        _jit(pick_above),
        _jit(draw_few),
    )
    _compile(built)
    return built


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
