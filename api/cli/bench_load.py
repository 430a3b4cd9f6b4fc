"""`neuron bench load`: many clients at once, and how long each waits for its first and for every further token."""

import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click

from neuron.api.cli.bench_ask import Asked, Prompts, ask, longest_prompt
from neuron.api.cli.http import Api, json_option, only_model, print_json, url_option
from neuron.api.cli.percentiles import percentile
from neuron.api.cli.plots import need_plots, plot_option, shares

_SHARES = (0.5, 0.9, 0.99)


class Lengths(click.ParamType):  # type: ignore[type-arg]  # generic in the newest releases only
    """`N`, or `LEAST:MOST` for lengths spread evenly between the two."""

    name = "N or LEAST:MOST"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        least, _, most = str(value).partition(":")
        try:
            found = int(least), int(most or least)
        except ValueError:
            self.fail(f"{value!r} is no length.", param, ctx)
        if not 1 <= found[0] <= found[1] <= 1_000_000:
            self.fail(f"{value!r} is no length between 1 and 1,000,000.", param, ctx)
        return found


class Work:
    """Requests that clients take one after the other; made beforehand, so that a seed gives the same ones."""

    def __init__(self, prompts: Prompts, count: int, prompt: tuple[int, int], tokens: tuple[int, int]) -> None:
        chance = random.Random(0)
        self._left = [
            prompts.body(chance.randint(*prompt), chance.randint(*tokens), temperature=0.7) for _ in range(count)
        ]
        self._lock = threading.Lock()
        self.done: list[Asked] = []

    def take(self) -> dict[str, Any] | None:
        with self._lock:
            return self._left.pop() if self._left else None

    def give(self, asked: Asked) -> None:
        with self._lock:
            self.done.append(asked)


def run(api: Api, work: Work, clients: int) -> float:
    """Each client asks as soon as its last answer is there; seconds until all are answered."""

    def client(number: int) -> None:
        # Each is a principal of its own: it is the queue that is measured, not the fair share of one caller.
        with api.client({"x-helexa-account-id": f"bench-{number}"}) as http:
            while (body := work.take()) is not None:
                work.give(ask(http, body))

    threads = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(clients)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


def report(found: list[Asked], clients: int, seconds: float) -> dict[str, Any]:
    """Figures over the answers that came whole; the others are counted by their code."""
    whole = [one for one in found if one.error is None]
    tokens = sum(one.completion_tokens for one in whole)
    return {
        "clients": clients,
        "requests": len(found),
        "errors": dict(Counter(one.error for one in found if one.error is not None)),
        "seconds": round(seconds, 2),
        "requests_per_s": round(len(whole) / seconds, 2),
        "prompt_tok_s": round(sum(one.prompt_tokens for one in whole) / seconds, 1),
        "answer_tok_s": round(tokens / seconds, 1),
        "first_token_ms": _spread([one.first for one in whole if one.first is not None]),
        "inter_token_ms": _spread([gap for one in whole for gap in one.gaps]),
        "total_ms": _spread([one.total for one in whole]),
        "queue_ms": _spread([one.timings.get("queue_ms", 0.0) / 1e3 for one in whole]),
    }


def _spread(seconds: list[float]) -> dict[str, float | None]:
    """Milliseconds; None where nothing was measured."""
    return {f"p{share * 100:.0f}": round(percentile(seconds, share) * 1e3, 2) if seconds else None for share in _SHARES}


def show(figures: dict[str, Any]) -> None:
    errors = ", ".join(f"{count} {code}" for code, count in figures["errors"].items()) or "none"
    click.echo(
        f"{figures['requests']} requests of {figures['clients']} clients in {figures['seconds']} s; errors: {errors}"
    )
    click.echo(
        f"{figures['requests_per_s']} requests/s, {figures['prompt_tok_s']} tokens/s in, {figures['answer_tok_s']} out"
    )
    click.echo(f"{'ms':<16}" + "".join(f"{f'p{share * 100:.0f}':>10}" for share in _SHARES))
    for key in ("first_token_ms", "inter_token_ms", "total_ms", "queue_ms"):
        values = "".join("         -" if value is None else f"{value:>10.1f}" for value in figures[key].values())
        click.echo(f"{key.removesuffix('_ms').replace('_', ' '):<16}{values}")


@click.command()
@click.argument("model_id", metavar="[ID]", required=False)
@url_option
@json_option
@click.option("--clients", type=click.IntRange(1, 256), default=4, show_default=True, help="Clients at one time.")
@click.option("--requests", type=click.IntRange(1, 100_000), default=32, show_default=True, help="Of all clients.")
@click.option("--prompt", type=Lengths(), default="256", show_default=True, help="Tokens of a prompt, roughly.")
@click.option("--tokens", type=Lengths(), default="64", show_default=True, help="Most tokens of an answer.")
@plot_option
def load(
    model_id: str | None,
    url: str,
    as_json: bool,
    clients: int,
    requests: int,
    prompt: tuple[int, int],
    tokens: tuple[int, int],
    plot: Path | None,
) -> None:
    """Load a running daemon with streaming clients; prints percentiles. What is refused is counted, not tried again."""
    need_plots(plot)
    api = Api(url)
    model = only_model(api, model_id)
    longest = longest_prompt(api, model, tokens[1])
    with api.client() as http:
        prompts = Prompts.measured(http, model)
    work = Work(prompts, requests, (min(prompt[0], longest), min(prompt[1], longest)), tokens)
    seconds = run(api, work, clients)
    figures = report(work.done, clients, seconds)
    if plot is not None:
        whole = [one for one in work.done if one.error is None]
        panels = {
            "first token, ms": [one.first * 1e3 for one in whole if one.first is not None],
            "between tokens, ms": [gap * 1e3 for one in whole for gap in one.gaps],
        }
        shares(plot, f"{model}: {clients} clients, {requests} requests", panels)
    if as_json:
        print_json({"model": model, **figures})
        return
    show(figures)
    if figures["errors"] and not any(one.error is None for one in work.done):
        raise click.ClickException("every request failed.")
