"""Running figures of one model: rates, counters, histograms and its latest requests. Written by its sessions.

They outlive an unload, so that counters never run backwards while the daemon runs.
"""

from collections import Counter, deque
from dataclasses import dataclass, field

import msgspec

from neuron.actors.histogram import TOKEN_SECONDS, Histogram

#: Weight of the newest sample, as gateways of this field expect.
ALPHA = 0.3
#: Finished requests remembered for the status page.
RECENT = 32


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One request without anything of its content. `outcome`: a finish reason, an error code, or "running".

    Milliseconds and tokens; `ended_at` is RFC 3339 (None while it runs), `ttft_ms` None before the first token.
    """

    req_id: str
    model: str
    phase: str
    outcome: str
    ended_at: str | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    queue_ms: float
    ttft_ms: float | None
    total_ms: float
    tok_s_decode: float


@dataclass(slots=True)
class Figures:
    """Tokens per second are 0.0 until measured. `outcomes` counts by finish reason or error code."""

    tok_s_prefill: float = 0.0
    tok_s_decode: float = 0.0
    requests: int = 0
    failed: int = 0
    unhealthy_logits: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    poisonings: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    queue_wait: Histogram = field(default_factory=Histogram)
    first_token: Histogram = field(default_factory=Histogram)
    inter_token: Histogram = field(default_factory=lambda: Histogram(TOKEN_SECONDS))
    duration: Histogram = field(default_factory=Histogram)
    recent: deque[RequestRecord] = field(default_factory=lambda: deque(maxlen=RECENT))

    def prefill(self, tokens: int, seconds: float) -> None:
        self.tok_s_prefill = _average(self.tok_s_prefill, tokens, seconds)

    def decode(self, tokens: int, seconds: float) -> None:
        self.tok_s_decode = _average(self.tok_s_decode, tokens, seconds)

    def refused(self, code: str) -> None:
        """A request that never reached the queue."""
        self.outcomes[code] += 1

    def ended(self, record: RequestRecord) -> None:
        """A request that was queued is over, however it ended."""
        self.outcomes[record.outcome] += 1
        self.duration.observe(record.total_ms / 1e3)
        self.recent.append(record)


def _average(old: float, tokens: int, seconds: float) -> float:
    if tokens <= 0 or seconds <= 0:
        return old
    rate = tokens / seconds
    return rate if old == 0.0 else ALPHA * rate + (1 - ALPHA) * old
