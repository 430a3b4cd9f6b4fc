"""Usage, timings and log-probabilities in OpenAI's, llama-server's and the gateway's shapes."""

from collections.abc import Iterable
from typing import Any

from neuron.actors.events import Finish, Timings, TokenLogprob, Usage


def usage_object(usage: Usage, timings: Timings) -> dict[str, Any]:
    """Chat's usage. `helexa_timing` has whole milliseconds."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "helexa_timing": helexa_timing(timings),
    }


def responses_usage_object(usage: Usage, timings: Timings | None = None) -> dict[str, Any]:
    body: dict[str, Any] = {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
    if timings is not None:
        body["helexa_timing"] = helexa_timing(timings)
    return body


def helexa_timing(timings: Timings) -> dict[str, int]:
    return {
        "prefill_ms": round(timings.prefill_ms),
        "decode_ms": round(timings.decode_ms),
        "prefill_tokens": timings.prefill_tokens,
    }


def timings_object(finish: Finish) -> dict[str, Any]:
    """Milliseconds and tokens per second; `prompt_n` counts tokens computed, `cached_n` those reused."""
    timings = finish.timings
    return {
        "prompt_n": timings.prefill_tokens,
        "prompt_ms": round(timings.prefill_ms, 3),
        "prompt_per_second": _rate(timings.prefill_tokens, timings.prefill_ms),
        "predicted_n": timings.decode_tokens,
        "predicted_ms": round(timings.decode_ms, 3),
        "predicted_per_second": _rate(timings.decode_tokens, timings.decode_ms),
        "queue_ms": round(timings.queue_ms, 3),
        "cached_n": timings.cached_tokens,
    }


def logprob_list(logprobs: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
    return [
        {**_logprob(entry), "top_logprobs": [_logprob(alternative) for alternative in entry.top]} for entry in logprobs
    ]


def _logprob(entry: TokenLogprob) -> dict[str, Any]:
    return {"token": entry.token, "logprob": max(entry.logprob, -9999.0), "bytes": list(entry.bytes)}


def _rate(count: int, milliseconds: float) -> float:
    return round(count * 1000.0 / milliseconds, 3) if milliseconds > 0 else 0.0
