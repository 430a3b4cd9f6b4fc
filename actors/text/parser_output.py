"""Collects the deltas of one feed, merging neighbours; used by the output parser only."""

from dataclasses import dataclass, field

from neuron.actors.events import Delta, ReasoningDelta, TextDelta, TokenLogprob


@dataclass(slots=True)
class DeltaSink:
    """Text of one channel that arrives in pieces leaves as one delta; log-probabilities ride on the next text."""

    _out: list[Delta] = field(default_factory=list)
    _pieces: list[str] = field(default_factory=list)
    _reasoning: bool = False
    _logprobs: list[TokenLogprob] = field(default_factory=list)

    def note(self, logprob: TokenLogprob | None) -> None:
        if logprob is not None:
            self._logprobs.append(logprob)

    @property
    def noted(self) -> int:
        return len(self._logprobs)

    def forget(self, since: int = 0) -> None:
        """Drop log-probabilities of tokens that became no text (a tool call, a marker, a stop string)."""
        del self._logprobs[since:]

    def text(self, text: str, *, reasoning: bool = False) -> None:
        if not text:
            return
        if self._pieces and self._reasoning != reasoning:
            self._close()
        self._reasoning = reasoning
        self._pieces.append(text)

    def cut(self) -> None:
        """The next text starts a delta of its own."""
        self._close()

    def event(self, delta: Delta) -> None:
        self._close()
        self._out.append(delta)

    def take(self) -> list[Delta]:
        self._close()
        out, self._out = self._out, []
        return out

    def _close(self) -> None:
        if not self._pieces:
            return
        text = "".join(self._pieces)
        self._pieces.clear()
        logprobs = tuple(self._logprobs)
        self._logprobs.clear()
        self._out.append(ReasoningDelta(text, logprobs) if self._reasoning else TextDelta(text, logprobs))
