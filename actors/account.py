"""Account: what one request took, from its place in the queue to its last token. Kept by its session.

The log line, the metrics and the status page all read it, so they cannot disagree.
"""

import time
from dataclasses import dataclass
from datetime import UTC, datetime

from neuron.actors.events import Timings, Usage
from neuron.actors.figures import Figures, RequestRecord


@dataclass(slots=True)
class Account:
    """Monotonic moments in seconds; 0.0 is "not yet"."""

    req_id: str
    model: str
    submitted_at: float
    running: float = 0.0
    first_logits: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0

    def started(self, figures: Figures) -> None:
        """The lock is taken."""
        self.running = time.monotonic()
        figures.queue_wait.observe(self.running - self.submitted_at)

    def token(self, figures: Figures) -> None:
        """A token was sampled."""
        now = time.monotonic()
        if self.first_token == 0.0:
            self.first_token = now
            figures.first_token.observe(now - self.submitted_at)
        else:
            figures.inter_token.observe(now - self.last_token)
        self.last_token = now

    @property
    def total_ms(self) -> float:
        return round((time.monotonic() - self.submitted_at) * 1e3, 1)

    @property
    def ttft_ms(self) -> float | None:
        """From the request's arrival to its first token; None before that."""
        return None if self.first_token == 0.0 else round((self.first_token - self.submitted_at) * 1e3, 1)

    def timings(self, *, prompt: int, generated: int, cached: int) -> Timings:
        now = time.monotonic()
        running = self.running or now
        first = self.first_logits or now
        return Timings(
            queue_ms=(running - self.submitted_at) * 1e3,
            prefill_ms=(first - running) * 1e3,
            decode_ms=(now - first) * 1e3,
            prefill_tokens=prompt - cached if self.first_logits else 0,
            decode_tokens=generated,
            cached_tokens=cached,
        )

    def line(self, usage: Usage, timings: Timings) -> dict[str, object]:
        """The figures of the request's one terminal log line."""
        return {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
            "cached_tokens": usage.cached_tokens,
            "queue_ms": round(timings.queue_ms, 1),
            "prefill_ms": round(timings.prefill_ms, 1),
            "ttft_ms": self.ttft_ms,
            "decode_ms": round(timings.decode_ms, 1),
            "tok_s_prefill": _rate(timings.prefill_tokens, timings.prefill_ms),
            "tok_s_decode": _rate(usage.completion_tokens - 1, timings.decode_ms),
            "total_ms": self.total_ms,
        }

    def record(self, usage: Usage, timings: Timings, *, phase: str, outcome: str | None) -> RequestRecord:
        """`outcome` None: it still runs."""
        return RequestRecord(
            req_id=self.req_id,
            model=self.model,
            phase=phase,
            outcome=outcome or "running",
            ended_at=None
            if outcome is None
            else datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            queue_ms=round(timings.queue_ms, 1),
            ttft_ms=self.ttft_ms,
            total_ms=self.total_ms,
            tok_s_decode=_rate(usage.completion_tokens - 1, timings.decode_ms),
        )


def _rate(tokens: int, milliseconds: float) -> float:
    return round(tokens / milliseconds * 1e3, 1) if tokens > 0 and milliseconds > 0 else 0.0
