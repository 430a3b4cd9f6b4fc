"""The tokens an answer under a constraint may still have, and what they are kept for. Owned by one Constraint.

While much is left nothing is narrowed. Near the end only tokens stay that leave room to close the value, at last the
closing ones alone. The same closing ends blanks and digits that go on without end.
"""

from collections.abc import Iterable

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from neuron.actors.text.constraint_closing import Closer, Lexer
from neuron.actors.text.constraint_vocabulary import Vocabulary

FORBIDDEN = np.float32(-np.inf)
#: Tokens that one step may add to what closing needs, at least.
LEAST_JUMP = 32
#: Of the best tokens so many are tried near the end.
CANDIDATES = 10
#: So many that fit are enough; so many may cost a search for the way behind them, through so many states.
ENOUGH = 4
SEARCHES = 2
QUICK = 300
#: Tokens this far (natural log) below the best are not tried.
REACH = np.float32(12.0)
#: Steps until the next attempt where no way to the end was found; twice as many after each failure.
RETRY = 16
#: Longest runs: blank characters anywhere, digits of one number, one token repeated within a string.
MAX_BLANKS = 96
MAX_DIGITS = 48
MAX_REPEATS = 192


class Budget:
    """`total`: tokens the whole answer may have, the end token among them. `jump`: see LEAST_JUMP."""

    def __init__(self, tokens: Vocabulary, closer: Closer, total: int | None, jump: int) -> None:
        self._tokens = tokens
        self._closer = closer
        self._left = total
        self._jump = max(LEAST_JUMP, jump)
        self._lexer = Lexer()
        self._plan: list[int] | None = None
        self._needed = self._jump
        self._pause = 0
        self._retry = RETRY
        self._next: dict[int, list[int]] = {}
        self._last = -1
        self._blanks = self._digits = self._repeats = 0

    # -- what was written ----------------------------------------------------------------------

    def spend(self) -> None:
        """One token that the grammar does not see: thinking."""
        if self._left is not None:
            self._left -= 1

    def note(self, token_id: int) -> None:
        """One token of the constrained text."""
        self.spend()
        piece = self._tokens.pieces[token_id]
        self._lexer.feed(piece)
        kept = self._next.get(token_id)
        if kept is not None:
            self._plan = kept
        elif self._plan and self._plan[0] == token_id:
            self._plan = self._plan[1:]
        self._next.clear()
        self._repeats = self._repeats + 1 if token_id == self._last and self._lexer.in_string else 0
        self._last = token_id
        self._blanks = 0 if _ink(piece) else self._blanks + len(piece)
        number = not self._lexer.in_string and piece.translate(None, b"0123456789.") == b""
        self._digits = self._digits + len(piece) if number else 0

    @property
    def _runs_on(self) -> bool:
        return self._blanks > MAX_BLANKS or self._digits > MAX_DIGITS or self._repeats > MAX_REPEATS

    # -- narrowing -----------------------------------------------------------------------------

    def thinking_must_end(self, matcher: LLMatcher) -> bool:
        """While thinking: what is left is just enough for the close marker and the answer, with a little air."""
        if self._left is None or self._left > 4 * self._needed:
            return False
        plan = self._current(matcher)
        return plan is not None and self._left - 1 <= 2 * len(plan) + 8

    def narrow(self, row: NDArray[np.float32], matcher: LLMatcher) -> None:
        """Forbid in `row` (already masked) what would leave too little."""
        if self._runs_on:
            self._follow(row, matcher)
        if self._left is None or self._left > 4 * self._needed:
            return
        plan = self._current(matcher)
        if plan is None:
            return
        spare = self._left - len(plan)
        if spare <= 0:
            only(row, plan[0])
        elif spare <= self._jump:
            self._try_best(row, matcher, plan)

    def _follow(self, row: NDArray[np.float32], matcher: LLMatcher) -> None:
        plan = self._plan = self._closer.plan(matcher, self._lexer, 1 << 16)
        self._blanks = self._digits = self._repeats = 0
        if plan:
            only(row, plan[0])

    def _current(self, matcher: LLMatcher) -> list[int] | None:
        """The plan from here; an old one is kept as long as it still ends the answer."""
        if self._pause:
            self._pause -= 1
            return None
        plan = self._plan
        if not plan or matcher.validate_tokens(plan) != len(plan):
            plan = self._closer.plan(matcher, self._lexer, 1 << 16)
            if plan is None:
                self._pause, self._retry = self._retry, 2 * self._retry
            else:
                self._retry = RETRY
        self._plan = plan
        if plan is not None:
            self._needed = max(len(plan), self._jump)
        return plan

    def _try_best(self, row: NDArray[np.float32], matcher: LLMatcher, plan: list[int]) -> None:
        """Keep the first step of the plan, and of the best tokens a few that leave room."""
        kept = {plan[0]: row[plan[0]] if np.isfinite(row[plan[0]]) else np.float32(0.0)}
        searches = SEARCHES
        for token in _best(row):
            if token in kept:
                continue
            fits, searched = self._fits(token, matcher, plan, search=searches > 0)
            searches -= searched
            if fits:
                kept[token] = row[token]
                if len(kept) > ENOUGH:
                    break
        row[:] = FORBIDDEN
        for token, value in kept.items():
            row[token] = value

    def _fits(self, token: int, matcher: LLMatcher, plan: list[int], *, search: bool) -> tuple[bool, bool]:
        """Whether what closes the answer behind `token` fits into what is left; whether it took a search."""
        left = (self._left or 0) - 1
        after = self._closer.behind(matcher, token, plan, left)
        if after is None and search:
            copy = matcher.deep_copy()
            if not copy.consume_token(token):
                return False, False
            if copy.is_stopped():
                return True, False
            lexer = self._lexer.copy()
            lexer.feed(self._tokens.pieces[token])
            after = self._closer.plan(copy, lexer, left, states=QUICK)
            if after is not None:
                self._next[token] = after
            return after is not None, True
        if after is not None:
            self._next[token] = after
        return after is not None, False


def required_names(schema: object, depth: int = 64) -> Iterable[bytes]:
    """Every key that some object of a schema requires."""
    if depth == 0:
        return
    if isinstance(schema, dict):
        required = schema.get("required")
        if isinstance(required, list):
            yield from (name.encode("utf-8", "replace") for name in required if isinstance(name, str))
        for value in schema.values():
            yield from required_names(value, depth - 1)
    elif isinstance(schema, list):
        for value in schema:
            yield from required_names(value, depth - 1)


def _ink(piece: bytes) -> bool:
    """Anything but blanks, escaped ones included."""
    return bool(piece.replace(b"\\n", b"").replace(b"\\t", b"").replace(b"\\r", b"").strip())


def _best(row: NDArray[np.float32]) -> list[int]:
    """The most likely first."""
    ids = np.flatnonzero(row >= row.max() - REACH)
    if ids.size > CANDIDATES:
        ids = ids[np.argpartition(-row[ids], CANDIDATES)[:CANDIDATES]]
    return [int(token) for token in ids[np.argsort(-row[ids], kind="stable")]]


def only(row: NDArray[np.float32], token: int) -> None:
    """Leave one token allowed, also where its logit was -inf."""
    value = row[token]
    row[:] = FORBIDDEN
    row[token] = value if np.isfinite(value) else 0.0
