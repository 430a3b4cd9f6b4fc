"""Constrained decoding: response_format and tool_choice enforced on the logits by llguidance, after any thinking.

Building compiles a grammar (milliseconds to a second): call `build_constraint` in a thread. A step costs some tens of
microseconds for the mask and about 0.1 ms to apply it to a row of 150,000.
"""

from enum import Enum, auto
from typing import Protocol

import numpy as np
from llguidance import LLMatcher, LLParserLimits
from numpy.typing import NDArray

from neuron.actors.errors import InvalidValue
from neuron.actors.request import InferenceRequest, Thinking, ToolChoice
from neuron.actors.text.constraint_budget import FORBIDDEN, Budget, only, required_names
from neuron.actors.text.constraint_closing import Closer
from neuron.actors.text.constraint_grammar import CallForm, grammar_of
from neuron.actors.text.constraint_vocabulary import Vocabulary, vocabulary
from neuron.actors.text.types import Markers, Tokenizer

_LIMITS = {"verbose_errors": False}
#: Bytes of grammar text for each token that one step may add to the shortest end (a key and its minimal value).
BYTES_PER_TOKEN = 4


class HasVocabulary(Protocol):
    """What a constraint needs of a loaded text model."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def reasoning(self) -> Markers | None: ...

    @property
    def tool_call(self) -> Markers | None: ...


class Phase(Enum):
    OPTIONAL = auto()  # first token: reasoning may open, or the answer begins
    THINKING = auto()
    ANSWER = auto()


def build_constraint(
    model: HasVocabulary,
    request: InferenceRequest,
    *,
    opens_reasoning: bool,
    form: CallForm = CallForm.JSON,
    max_new_tokens: int | None = None,
) -> "Constraint | None":
    """None where the request constrains nothing. Blocking; run it in a thread.

    `form`: how this model writes calls (`call_form` of its template). `max_new_tokens`: the answer is brought to its
    end within so many tokens, thinking and the end token included, where that is possible. Raises InvalidValue (400)
    for a schema that is too large, too deep, or that the library cannot enforce.
    """
    reasoning = model.reasoning
    grammar = grammar_of(request, model.tool_call, form, newlines=False)
    if grammar is None:
        return None
    tokens = vocabulary(model.tokenizer)
    matcher = _matcher(tokens, grammar)
    error = _probe(matcher.deep_copy(), tokens)
    if error:
        forced = request.tool_choice in (ToolChoice.REQUIRED, ToolChoice.NAMED)
        raise InvalidValue(
            f"This JSON schema cannot be enforced: {_reason(error)}", param="tools" if forced else "response_format"
        )
    if reasoning is not None:
        matcher = _matcher(tokens, grammar_of(request, model.tool_call, form, newlines=True) or grammar)
    phase = Phase.ANSWER
    if reasoning is not None:
        if opens_reasoning:
            phase = Phase.THINKING
        elif request.thinking is not Thinking.OFF:
            phase = Phase.OPTIONAL
    forbidden = set(model.tokenizer.eos_ids)
    if model.tool_call is not None:
        forbidden.add(model.tool_call.open_id)
    jump = len(grammar) // BYTES_PER_TOKEN
    budget = Budget(tokens, _closer(model, request, tokens), max_new_tokens, jump)
    return Constraint(matcher, tokens, phase, reasoning, sorted(forbidden), budget)


def _closer(model: HasVocabulary, request: InferenceRequest, tokens: Vocabulary) -> Closer:
    markers = model.tool_call
    specials = () if markers is None else (markers.open_id, markers.close_id)
    schemas = [request.response_format.schema, *(tool.parameters for tool in request.tools)]
    return Closer(tokens, specials, required_names(schemas))


class Constraint:
    """One answer's mask. Call `apply` on each row before sampling and `commit` with each sampled id."""

    def __init__(
        self,
        matcher: LLMatcher,
        tokens: Vocabulary,
        phase: Phase,
        reasoning: Markers | None,
        not_while_thinking: list[int],
        budget: Budget,
    ) -> None:
        self._matcher = matcher
        self._phase = phase
        self._reasoning = reasoning
        self._not_while_thinking = not_while_thinking
        self._budget = budget
        self._size = tokens.size
        self._unwritten = tokens.unwritten
        self._mask = np.zeros((self._size + 31) // 32 * 4, dtype=np.uint8)

    @property
    def active(self) -> bool:
        """False while the model thinks: only the end of the answer and calls are forbidden then."""
        return self._phase is not Phase.THINKING

    @property
    def complete(self) -> bool:
        """Nothing but an end token may follow; the answer may be ended without sampling one."""
        return self.active and self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def accepting(self) -> bool:
        """What was written so far satisfies the grammar (more may be allowed)."""
        return self.active and self._matcher.is_accepting()

    def apply(self, logits: NDArray[np.float32]) -> None:
        """Set the forbidden ids of one row (at least vocab_size floats) to -inf, in place.

        Raises InvalidValue where the grammar turned out too costly for the library's limits.
        """
        if self._phase is Phase.THINKING:
            logits[self._not_while_thinking] = FORBIDDEN
            if self._reasoning is not None and self._budget.thinking_must_end(self._matcher):
                only(logits, self._reasoning.close_id)
            return
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        self._check()
        opening = self._reasoning.open_id if self._phase is Phase.OPTIONAL and self._reasoning is not None else None
        kept = None if opening is None else logits[opening]
        allowed = np.unpackbits(self._mask, count=self._size, bitorder="little").view(np.bool_)
        for token_id in self._unwritten:
            if not allowed[token_id] and self._matcher.validate_tokens([token_id]) == 1:
                allowed[token_id] = True
        row = logits[: self._size]
        np.copyto(row, FORBIDDEN, where=~allowed[: len(row)])
        logits[self._size :] = FORBIDDEN
        self._budget.narrow(row, self._matcher)
        if opening is not None and not self._budget.thinking_must_end(self._matcher):
            logits[opening] = kept

    def commit(self, token_id: int) -> None:
        """Advance by a sampled id. Raises InvalidValue for one the mask forbade."""
        reasoning = self._reasoning
        if self._phase is Phase.THINKING:
            self._budget.spend()
            if reasoning is not None and token_id == reasoning.close_id:
                self._phase = Phase.ANSWER
            return
        if self._phase is Phase.OPTIONAL:
            self._phase = Phase.ANSWER
            if reasoning is not None and token_id == reasoning.open_id:
                self._phase = Phase.THINKING
                self._budget.spend()
                return
        self._matcher.consume_token(token_id)
        self._check()
        self._budget.note(token_id)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise InvalidValue(
                f"The constraint on the answer cannot be followed: {_reason(self._matcher.get_error())}",
                param="response_format",
            )


def _matcher(tokens: Vocabulary, grammar: str) -> LLMatcher:
    return LLMatcher(tokens.trie, grammar, log_level=0, limits=LLParserLimits(**_LIMITS))


def _probe(matcher: LLMatcher, tokens: Vocabulary) -> str:
    """The error of a grammar that does not compile, or that cannot take its first steps; "" when there is none.

    What would fail at the first tokens is refused with a status, not inside a stream.
    """
    for text in ("", "{"):
        if text and matcher.try_consume_tokens(tokens.trie.greedy_tokenize(text)) == 0:
            break
        if not matcher.is_error() and not matcher.is_stopped():
            matcher.compute_bitmask()
    return str(matcher.get_error()) if matcher.is_error() else ""


def _reason(text: str) -> str:
    """The library's first line, without the place in a grammar the client never saw."""
    line = text.strip().splitlines()[0] if text.strip() else "unknown"
    return line.split("failed to compile JSON schema: ", 1)[-1][:300]
