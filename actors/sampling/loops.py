"""The compiled loops over one logits row; see `kernels.Kernels` for what each does. Importing this imports Numba.

Machine code is kept where Numba keeps it (beside this file, else in the user's cache). For `sampling.kernels` alone.
"""
# mypy: allow-untyped-defs, allow-untyped-decorators

import contextlib
import itertools
import math
import os
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.core.bytecode import FunctionIdentity
from numba.core.caching import FunctionCache
from numba.core.runtime import rtsys

from neuron.actors.sampling.kernels import BLOCK, NEGLIGIBLE

#: What vectorises sums; NaN and infinities keep their meaning.
_REASSOCIATE = {"reassoc", "nsz", "contract", "arcp"}
# Numba numbers the functions it compiles from 1 in every process, and the numbers are part of kept symbols: those of
# two processes must not meet in a third.
FunctionIdentity._unique_ids = itertools.count(int.from_bytes(os.urandom(6), "little"))


class _Cache(FunctionCache):  # type: ignore[misc]
    """Numba's cache, except: it does not first load all that Numba can compile, a quarter of a second that only a miss
    needs (and then has anyway), and what cannot be read or written is compiled."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            rtsys.initialize(target_context)
            return self._load_overload(sig, target_context)
        except Exception:  # A damaged file: compiled anew, and listed anew.
            with contextlib.suppress(OSError):
                os.unlink(self._cache_file._index_path)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        # Constants of another file: Numba looks at this file alone.
        return (*super()._index_key(sig, codegen), BLOCK, NEGLIGIBLE)


def _compiled(function: Callable[..., Any], **options: Any) -> Any:
    dispatcher = numba.njit(function, nogil=True, **options)
    with contextlib.suppress(RuntimeError, OSError):  # Nowhere to keep it: read-only without a home.
        dispatcher._cache = _Cache(function)
    return dispatcher


def _summing(function: Callable[..., Any]) -> Any:
    return _compiled(function, fastmath=_REASSOCIATE)


@_compiled
def weight(x):
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


@_compiled
def ordered(bits):
    # A float's bits as an integer that is ordered like the float, and back: their maximum vectorises, a float's
    # does not, because of NaN.
    return np.int32(bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@_compiled
def scan(row, maxima):
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


@_summing
def block_sums(row, maxima, top, scale, sums):
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


@_compiled
def gather(row, maxima, threshold, ids, values):
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


@_compiled
def pick(row, sums, top, scale, target):
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


@_summing
def weigh(row, top, scale, weights):
    for i in range(row.shape[0]):
        weights[i] = weight((row[i] - top) * scale)


@_summing
def mass_above(weights, least):
    total: Any = 0.0
    for begin in range(0, weights.shape[0], BLOCK):
        part: Any = np.float32(0.0)
        for i in range(begin, min(begin + BLOCK, weights.shape[0])):
            part += weights[i] * np.float32(weights[i] >= least)
        total += part
    return total


@_compiled
def bucket_masses(weights, masses):
    bits = weights.view(np.int32)
    masses[:] = 0.0
    for i in range(weights.shape[0]):
        masses[bits[i] >> 16] += weights[i]


@_compiled
def pick_above(weights, least, target):
    chosen = -1
    for i in range(weights.shape[0]):
        if weights[i] >= least:
            chosen = i
            target -= weights[i]
            if target < 0.0:
                break
    return chosen


@_compiled
def in_order(ids, values):
    for i in range(1, values.shape[0]):
        token, value, place = ids[i], values[i], i
        while place > 0 and values[place - 1] < value:
            ids[place], values[place] = ids[place - 1], values[place - 1]
            place -= 1
        ids[place], values[place] = token, value


@_compiled
def draw_few(ids, values, k, top, scale, top_p, min_p, total, share):
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
