"""One streamed chat with its times, and prompts of a wanted length; for `neuron bench`."""

import itertools
import json
import random
import time
from typing import Any

import click
import httpx
import msgspec

from neuron.api.cli.http import Api

_WORDS = (
    "river stone garden window market signal engine copper winter letter planet orange silver bridge forest doctor "
    "mirror pencil summer valley thunder blanket corner island kettle ladder magnet needle packet rocket saddle tunnel"
).split()
#: Words of the two probes that tell how many tokens a word and an empty message are.
_FEW, _MANY = 1, 201


class Asked(msgspec.Struct, frozen=True):
    """Seconds. `gaps`: between two pieces of text. With an `error` (its public code) the rest is what came before."""

    first: float | None
    gaps: tuple[float, ...]
    total: float
    prompt_tokens: int
    completion_tokens: int
    timings: dict[str, float]
    error: str | None = None


def ask(client: httpx.Client, body: dict[str, Any]) -> Asked:
    """Streams one answer. What goes wrong is in `error`, so that one refusal ends no bench."""
    start = time.perf_counter()
    arrivals: list[float] = []
    usage: dict[str, Any] = {}
    timings: dict[str, float] = {}
    error: str | None = None
    try:
        with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
            if response.status_code != 200:
                error = _code(response.read(), response.status_code)
            for line in response.iter_lines() if error is None else ():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    error = str(chunk["error"].get("code") or "error")
                if _has_text(chunk):
                    arrivals.append(time.perf_counter())
                usage, timings = chunk.get("usage") or usage, chunk.get("timings") or timings
    except (httpx.HTTPError, ValueError) as failure:
        error = type(failure).__name__
    return Asked(
        first=arrivals[0] - start if arrivals else None,
        gaps=tuple(later - earlier for earlier, later in itertools.pairwise(arrivals)),
        total=time.perf_counter() - start,
        prompt_tokens=usage.get("prompt_tokens", 0),
        completion_tokens=usage.get("completion_tokens", 0),
        timings=timings,
        error=error,
    )


def _has_text(chunk: dict[str, Any]) -> bool:
    deltas = [choice.get("delta") or {} for choice in chunk.get("choices") or ()]
    return any(delta.get(key) for delta in deltas for key in ("content", "reasoning_content", "tool_calls"))


def _code(body: bytes, status: int) -> str:
    try:
        return str(json.loads(body)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return str(status)


def checked(asked: Asked) -> Asked:
    """Raises ClickException for an answer that failed."""
    if asked.error is not None:
        raise click.ClickException(f"the daemon refused: {asked.error}.")
    return asked


class Prompts:
    """Messages of about so many tokens, each beginning differently, so that none profits from another's prefix."""

    def __init__(self, model: str, base: float, per_word: float) -> None:
        self.model = model
        self._base = base
        self._per_word = per_word
        self._chance = random.Random(0)
        self._mark, self._made = f"{time.time_ns():x}", 0

    @classmethod
    def measured(cls, client: httpx.Client, model: str) -> "Prompts":
        """Asks the model twice for one token. Raises ClickException."""
        prompts = cls(model, 0.0, 1.0)
        few, many = (
            checked(ask(client, prompts._body(words, 1, temperature=0))).prompt_tokens for words in (_FEW, _MANY)
        )
        per_word = max((many - few) / (_MANY - _FEW), 0.1)
        return cls(model, few - _FEW * per_word, per_word)

    def body(self, tokens: int, answer: int, **fields: Any) -> dict[str, Any]:
        """A request with a prompt of about `tokens` and an answer of at most `answer` tokens."""
        return self._body(max(1, round((tokens - self._base) / self._per_word)), answer, **fields)

    def _body(self, words: int, answer: int, **fields: Any) -> dict[str, Any]:
        self._made += 1
        text = f"{self._made} {self._mark} " + " ".join(self._chance.choices(_WORDS, k=words))
        return {"model": self.model, "messages": [{"role": "user", "content": text}], "max_tokens": answer, **fields}


def longest_prompt(api: Api, model: str, answer: int) -> int:
    """Tokens that a prompt may have so that `answer` more fit."""
    limits = [entry["limit"] for entry in api.get("/models") if model in (entry["id"], entry["source_id"])]
    if not limits:
        return 1 << 30
    return max(1, min(int(limits[0]["input"]), int(limits[0]["context"]) - answer))
