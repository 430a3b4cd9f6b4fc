"""Running figures of one model: token rates (exponential moving averages) and counters. Written by its sessions."""

from dataclasses import dataclass

#: Weight of the newest sample, as gateways of this field expect.
ALPHA = 0.3


@dataclass(slots=True)
class Figures:
    """Tokens per second are 0.0 until measured."""

    tok_s_prefill: float = 0.0
    tok_s_decode: float = 0.0
    requests: int = 0
    failed: int = 0
    unhealthy_logits: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def prefill(self, tokens: int, seconds: float) -> None:
        self.tok_s_prefill = _average(self.tok_s_prefill, tokens, seconds)

    def decode(self, tokens: int, seconds: float) -> None:
        self.tok_s_decode = _average(self.tok_s_decode, tokens, seconds)


def _average(old: float, tokens: int, seconds: float) -> float:
    if tokens <= 0 or seconds <= 0:
        return old
    rate = tokens / seconds
    return rate if old == 0.0 else ALPHA * rate + (1 - ALPHA) * old
