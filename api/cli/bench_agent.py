"""`neuron bench agent`: how long each turn of a coding agent waits for its first token, with and without reuse."""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import click
import msgspec

from neuron.api.cli.agent_talk import TOOLS, Messages, alone, conversation
from neuron.api.cli.http import Api, json_option, only_model, print_json, url_option
from neuron.api.cli.plots import Points, curves, need_plots, plot_option

_PROBE_LINES = 40


class Turn(msgspec.Struct, frozen=True):
    """`reused` of `tokens` were not computed; `first_token_ms` is the time until the first token was there."""

    tokens: int
    reused: int
    first_token_ms: float

    @property
    def computed(self) -> int:
        return self.tokens - self.reused


class Comparison(msgspec.Struct, frozen=True):
    """One turn of the agent. `alone_ms`: the tokens it computed, computed with nothing before them."""

    turn: int
    warm: Turn
    cold: Turn | None
    alone_ms: float
    peer: Turn | None = None


Ask = Callable[[Messages], Turn]


def asker(api: Api, model: str) -> Ask:
    """Asks for one token; times the whole request, so that servers of any kind are measured alike."""

    def ask(messages: Messages) -> Turn:
        body = {"model": model, "messages": messages, "tools": TOOLS, "max_tokens": 1, "temperature": 0}
        start = time.perf_counter()
        answer = api.post("/v1/chat/completions", body)
        taken = (time.perf_counter() - start) * 1e3
        usage = answer["usage"]
        details = usage.get("prompt_tokens_details") or {}
        reused = details.get("cached_tokens", (answer.get("timings") or {}).get("cache_n", 0))
        return Turn(int(usage["prompt_tokens"]), int(reused or 0), round(taken, 1))

    return ask


def measure(
    ask: Ask, turns: int, tokens: int, *, cold: bool, peer: Ask | None, say: Callable[[Comparison], None]
) -> list[Comparison]:
    """Warm turns first, each beside the peer's, then (with `cold`) each as if nothing had come before."""
    mark = f"{time.time_ns():x}"
    probe = ask(alone(_PROBE_LINES, f"probe {mark}"))
    lines = max(4, round(tokens / turns / max(probe.tokens / _PROBE_LINES, 1)))
    talk = conversation(turns, lines, f"first {mark}")
    found: list[Comparison] = []
    rate = median(_rate(ask(alone(lines, f"alone {number} {mark}"))) for number in range(3))
    for number, messages in enumerate(talk, 1):
        warm = ask(messages)
        beside = peer(messages) if peer is not None else None
        from_nothing = ask(conversation(number, lines, f"cold {number} {mark}")[-1]) if cold else None
        found.append(Comparison(number, warm, from_nothing, round(warm.computed * rate, 1), beside))
        say(found[-1])
    return found


def _rate(turn: Turn) -> float:
    """Milliseconds a token that was computed."""
    return turn.first_token_ms / max(turn.computed, 1)


def summary(found: list[Comparison]) -> dict[str, Any]:
    """Figures over the turns after the first, which has nothing to reuse."""
    later = found[1:]
    # What a turn adds cannot have been there before: reuse is counted on what had been sent already.
    known = [earlier.warm.tokens for earlier in found[:-1]]
    report: dict[str, Any] = {
        "turns": len(found),
        "last_prompt": found[-1].warm.tokens,
        "reuse_of_known": round(sum(turn.warm.reused for turn in later) / max(sum(known), 1), 4),
        "warm_ms": median(turn.warm.first_token_ms for turn in later),
        "warm_over_alone": round(median(turn.warm.first_token_ms / turn.alone_ms for turn in later), 2),
    }
    cold = [(turn.cold.first_token_ms, turn.warm.first_token_ms) for turn in later if turn.cold is not None]
    if cold:
        report["cold_ms"] = median(one for one, _ in cold)
        report["cold_over_warm"] = round(median(one / other for one, other in cold), 2)
    peer = [(turn.peer.first_token_ms, turn.warm.first_token_ms) for turn in later if turn.peer is not None]
    if peer:
        report["peer_ms"] = median(one for one, _ in peer)
        report["peer_over_warm"] = round(median(one / other for one, other in peer), 2)
    return report


def print_turn(turn: Comparison) -> None:
    line = f"turn {turn.turn:3d}  prompt {turn.warm.tokens:6d}  reused {turn.warm.reused:6d}"
    line += f"  first token {turn.warm.first_token_ms:8.1f} ms  (new tokens alone {turn.alone_ms:8.1f} ms"
    if turn.cold is not None:
        line += f", cold {turn.cold.first_token_ms:8.1f} ms"
    if turn.peer is not None:
        line += f", peer {turn.peer.first_token_ms:8.1f} ms"
    click.echo(line + ")")


def _lines(found: list[Comparison]) -> dict[str, Points]:
    """Time to the first token by length of the prompt: with reuse, and whatever else was measured."""
    xs = [turn.warm.tokens for turn in found]
    lines: dict[str, Points] = {"with reuse": (xs, [turn.warm.first_token_ms for turn in found])}
    for name, others in (("without", [turn.cold for turn in found]), ("peer", [turn.peer for turn in found])):
        if all(other is not None for other in others):
            lines[name] = (xs, [other.first_token_ms for other in others if other is not None])
    return lines


@click.command()
@click.argument("model_id", metavar="[ID]", required=False)
@url_option
@json_option
@click.option("--turns", type=click.IntRange(2, 1000), default=12, show_default=True)
@click.option("--tokens", type=click.IntRange(200, 1_000_000), default=8192, show_default=True, help="Last prompt's.")
@click.option("--cold/--no-cold", default=True, help="Also measure each turn with nothing before it.")
@click.option("--peer-url", help="Another OpenAI-compatible server (llama-server) that is asked the same.")
@click.option("--peer-model", default="default", show_default=True, help="The model's name there.")
@plot_option
def agent(
    model_id: str | None,
    url: str,
    as_json: bool,
    turns: int,
    tokens: int,
    cold: bool,
    peer_url: str | None,
    peer_model: str,
    plot: Path | None,
) -> None:
    """Measure a coding agent's conversation with tools: time to the first token of each turn."""
    need_plots(plot)
    api = Api(url)
    peer = asker(Api(peer_url), peer_model) if peer_url is not None else None
    say: Callable[[Comparison], None] = (lambda turn: None) if as_json else print_turn
    found = measure(asker(api, only_model(api, model_id)), turns, tokens, cold=cold, peer=peer, say=say)
    report = summary(found)
    if plot is not None:
        curves(plot, "first token of each turn", "tokens of the prompt", {"ms": _lines(found)})
    if as_json:
        print_json({**report, "each": [msgspec.to_builtins(turn) for turn in found]})
        return
    for key, value in report.items():
        click.echo(f"{key:<16} {value}")
