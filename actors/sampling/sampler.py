"""Sampler: the next token from one logits row, for one request. Owned by a session; never writes to the row.

Order: penalties, bias and grammar change logits; then temperature, top-k, top-p, min-p, each on what the one before
left; then one draw. The row itself stays as the device wrote it.
"""

import math
import secrets
import sys
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from neuron.actors.errors import NanLogits
from neuron.actors.sampling.history import History
from neuron.actors.sampling.kernels import BLOCK, BUCKETS, FloatRow, kernels, ready
from neuron.actors.sampling.params import ResolvedSampling

#: How far below the top (in units of the temperature) a nucleus is looked for first; nearly every real one lies inside.
NUCLEUS_REACH = 8.0
#: While compiling, this thread hands the interpreter over so often that the event loop keeps answering.
SWITCH_S = 0.0005
#: Dividing by less would leave the range of a float32; rewards repetition beyond any doubt as it is.
LEAST_PENALTY = 1e-6
#: So many candidates are sorted at most, and so many without the library.
FEW, QUICK = 4096, 192


class Constraint(Protocol):
    """A grammar over the answer."""

    def apply(self, logits: FloatRow) -> None:
        """Set forbidden ids to -inf, in place."""

    def commit(self, token_id: int) -> None: ...


class Sampled(NamedTuple):
    """`logprob` and `top` (most likely first) are natural logs under the model's own distribution, if asked for."""

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def warm_up() -> None:
    """Compile (or read from the cache) what the first request would otherwise wait for. Blocking: call in a thread."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        kernels()
    finally:
        sys.setswitchinterval(before)


def must_warm_up(params: ResolvedSampling, top_logprobs: int | None) -> bool:
    """Whether `sample` would have to compile or load first, on the event loop. Greedy choice needs none of it."""
    return not ready() and (not params.greedy or top_logprobs is not None)


class Sampler:
    """`vocab_size`: logits that belong to tokens; what lies past them in a row is never looked at."""

    def __init__(
        self,
        params: ResolvedSampling,
        *,
        vocab_size: int,
        prompt: list[int] | None = None,
        constraint: Constraint | None = None,
        top_logprobs: int | None = None,
    ) -> None:
        self._params = params
        self._size = vocab_size
        self._constraint = constraint
        self._top_logprobs = top_logprobs
        self._history = History(prompt or [], vocab_size) if params.penalises else None
        seed = secrets.randbits(64) if params.seed is None else params.seed & (2**64 - 1)
        self._random = np.random.Generator(np.random.PCG64DXSM(seed))
        bias = params.logit_bias
        self._bias_ids = np.array([token for token, _ in bias], np.int64)
        self._bias = np.array([value for _, value in bias], np.float32)
        blocks = -(-vocab_size // BLOCK)
        self._maxima = np.empty(blocks, np.float32)
        self._sums = np.empty(blocks, np.float64)
        # Gathering scratch and the copy that edits work on are made when first needed.
        self._ids = np.empty(0, np.int32)
        self._values = np.empty(0, np.float32)
        self._copy = np.empty(0, np.float32)
        self._weights = np.empty(0, np.float32)

    def sample(self, logits: FloatRow) -> Sampled:
        """The next token. Raises NanLogits when the row has no finite largest logit. Call `accept` with it after."""
        row = logits[: self._size]
        token = self._choose(self._edited(row))
        if self._top_logprobs is None:
            return Sampled(token)
        return self._with_logprobs(row, token, self._top_logprobs)

    def accept(self, token_id: int) -> None:
        """Note the token for penalties and grammar; apart from `sample` so that the device gets its job first."""
        if self._history is not None:
            self._history.add(token_id)
        if self._constraint is not None:
            self._constraint.commit(token_id)

    # -- edits ---------------------------------------------------------------------------------

    def _edited(self, row: FloatRow) -> FloatRow:
        if self._history is None and not self._bias.size and self._constraint is None:
            return row
        if not self._copy.size:
            self._copy = np.empty(self._size, np.float32)
        edited = self._copy
        np.copyto(edited, row)
        if self._history is not None:
            self._penalise(edited, self._history)
        if self._bias.size:
            np.add.at(edited, self._bias_ids, self._bias)
        if self._constraint is not None:
            self._constraint.apply(edited)
        return edited

    def _penalise(self, row: FloatRow, history: History) -> None:
        params = self._params
        if params.repetition_penalty != 1.0 and params.repeat_last_n != 0:
            ids = history.recent(params.repeat_last_n)
            ids = ids[ids < self._size]
            seen = row[ids]
            penalty = np.float32(max(params.repetition_penalty, LEAST_PENALTY))
            row[ids] = np.where(seen > 0, seen / penalty, seen * penalty)
        if params.presence_penalty or params.frequency_penalty:
            ids, counts = history.answer()
            row[ids] -= np.float32(params.presence_penalty) + np.float32(params.frequency_penalty) * counts

    # -- the choice ----------------------------------------------------------------------------

    def _choose(self, row: FloatRow) -> int:
        params = self._params
        if params.greedy:
            token = int(row.argmax())
            _check(float(row[token]))
            return token
        top = self._scan(row)
        scale = np.float32(1.0 / params.temperature)
        if 0 < params.top_k < self._size:
            return self._draw(*self._at_least(row, params.top_k), params.top_k, top, scale, 0.0)
        if params.top_p < 1.0 or params.min_p > 0.0:
            return self._truncated(row, top, scale)
        total = kernels().block_sums(row, self._maxima, top, scale, self._sums)
        return int(kernels().pick(row, self._sums, top, scale, self._random.random() * total))

    def _truncated(self, row: FloatRow, top: np.float32, scale: np.float32) -> int:
        """Top-p and min-p without top-k. Few candidates are sorted, a flat distribution is cut by a threshold."""
        params = self._params
        total = math.inf
        reach = NUCLEUS_REACH
        if params.min_p > 0.0:
            reach = min(reach, -math.log(min(params.min_p, 1.0)))
        if params.top_p < 1.0:
            total = kernels().block_sums(row, self._maxima, top, scale, self._sums)
        ids, values = self._above(row, np.float32(top - reach / scale), FEW)
        if ids.size < FEW:
            if params.top_p >= 1.0:
                return self._draw(ids, values, FEW, top, scale, 0.0)
            inside = float(np.exp((values - top) * scale).sum(dtype=np.float64))
            if inside >= params.top_p * total:
                return self._draw(ids, values, FEW, top, scale, total)
        return self._cut(row, top, scale, total)

    def _cut(self, row: FloatRow, top: np.float32, scale: np.float32, total: float) -> int:
        """Keeps every weight from a threshold on (those equal to it together), in time linear in the row."""
        params, loops = self._params, kernels()
        if not self._weights.size:
            self._weights = np.empty(self._size, np.float32)
        loops.weigh(row, top, scale, self._weights)
        least = np.float32(max(params.min_p, 1e-37))
        if params.top_p < 1.0:
            least = max(least, self._least_of_nucleus(params.top_p * total))
        mass = loops.mass_above(self._weights, least)
        return int(loops.pick_above(self._weights, least, self._random.random() * mass))

    def _least_of_nucleus(self, wanted: float) -> np.float32:
        """The smallest weight of the top-p set: find the bucket where the mass is reached, then sort only that one."""
        masses = np.empty(BUCKETS, np.float64)
        kernels().bucket_masses(self._weights, masses)
        from_top = np.cumsum(masses[::-1])
        place = min(int(np.searchsorted(from_top, wanted)), BUCKETS - 1)
        bucket = BUCKETS - 1 - place
        inside = np.sort(self._weights[(self._weights.view(np.int32) >> 16) == bucket])[::-1]
        if not inside.size:
            return np.float32(0.0)
        above = float(from_top[place - 1]) if place else 0.0
        reached = int(np.searchsorted(above + np.cumsum(inside, dtype=np.float64), wanted))
        return np.float32(inside[min(reached, inside.size - 1)])

    def _scan(self, row: FloatRow) -> np.float32:
        """Fills the blocks' maxima and returns the largest logit. A NaN anywhere is seen here."""
        top = kernels().scan(row, self._maxima)
        _check(float(top))
        return np.float32(top)

    def _above(self, row: FloatRow, threshold: np.float32, most: int) -> tuple[npt.NDArray[np.int32], FloatRow]:
        """Ids and logits at or above `threshold`, in order of ids; `most` of them when there are more."""
        if self._ids.size < most:
            self._ids = np.empty(most, np.int32)
            self._values = np.empty(most, np.float32)
        count = kernels().gather(row, self._maxima, threshold, self._ids[:most], self._values[:most])
        return self._ids[:count], self._values[:count]

    def _at_least(self, row: FloatRow, k: int) -> tuple[npt.NDArray[np.int32], FloatRow]:
        """Candidates that the k largest are among. The k-th largest block maximum bounds the k-th logit from below."""
        blocks = self._maxima.size
        if k <= blocks:
            bound = np.partition(self._maxima, blocks - k)[blocks - k]
        else:
            bound = np.partition(row, self._size - k)[self._size - k]
        return self._above(row, bound, self._size)

    def _largest(self, row: FloatRow, k: int) -> tuple[npt.NDArray[np.int32], FloatRow]:
        """The k largest, most likely first, ties by id."""
        ids, values = self._at_least(row, k)
        order = np.argsort(-values, kind="stable")[:k]
        return ids[order], values[order]

    def _draw(
        self, ids: npt.NDArray[np.int32], values: FloatRow, k: int, top: np.float32, scale: np.float32, total: float
    ) -> int:
        """The k most likely, top-p of `total` (0: of their own sum), min-p, then one draw among what is left."""
        params = self._params
        if ids.size > QUICK:
            order = np.argsort(-values, kind="stable")[:k]
            ids, values = ids[order], values[order]
        share = self._random.random()
        return int(kernels().draw_few(ids, values, k, top, scale, params.top_p, params.min_p, total, share))

    # -- log-probabilities ---------------------------------------------------------------------

    def _with_logprobs(self, row: FloatRow, token: int, count: int) -> Sampled:
        top = self._scan(row)
        one = np.float32(1.0)
        log_total = math.log(kernels().block_sums(row, self._maxima, top, one, self._sums)) + float(top)
        best: tuple[tuple[int, float], ...] = ()
        if count:
            ids, values = self._largest(row, min(count, self._size))
            best = tuple((int(i), float(v) - log_total) for i, v in zip(ids, values, strict=True))
        return Sampled(token, float(row[token]) - log_total, best)


def _check(top: float) -> None:
    if not math.isfinite(top):
        raise NanLogits("The model produced no usable next-token distribution.")
