"""`neuron bench`: tokens per second of a loaded model, from its own timings; `neuron bench agent` beside it."""

from statistics import median
from typing import Any

import click

from neuron.api.cli.bench_agent import agent
from neuron.api.cli.http import Api, json_option, only_model, print_json, url_option

_WORD = "alpha "


class _SpeedByDefault(click.Group):
    """Anything that is no command's name is for `speed`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, "--help", "-h"):
            args = ["speed", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_SpeedByDefault)
def bench() -> None:
    """Measure a running daemon. `neuron bench [ID]` is `neuron bench speed [ID]`."""


bench.add_command(agent)


@bench.command()
@click.argument("model_id", metavar="[ID]", required=False)
@url_option
@json_option
@click.option(
    "--prompt-words", type=click.IntRange(1, 100_000), default=256, show_default=True, help="Words of the prompt."
)
@click.option("--tokens", type=click.IntRange(1, 100_000), default=64, show_default=True, help="Tokens to generate.")
@click.option("--runs", type=click.IntRange(1, 1000), default=3, show_default=True, help="Runs that count.")
def speed(model_id: str | None, url: str, as_json: bool, prompt_words: int, tokens: int, runs: int) -> None:
    """Measure prefill and decode of a running daemon; prints medians. One warm-up run is not counted."""
    api = Api(url)
    model = only_model(api, model_id)
    results: list[dict[str, Any]] = []
    for number in range(runs + 1):
        # Each prompt begins differently, so that no run profits from another's.
        body = {
            "model": model,
            "messages": [{"role": "user", "content": f"{number} " + _WORD * prompt_words}],
            "max_tokens": tokens,
            "temperature": 0,
        }
        answer = api.post("/v1/chat/completions", body)
        if number:
            results.append(answer["timings"])
    report = {
        "model": model,
        "runs": runs,
        "prompt_tokens": results[0]["prompt_n"],
        "prefill_tok_s": round(median(run["prompt_per_second"] for run in results), 1),
        "decode_tok_s": round(median(run["predicted_per_second"] for run in results), 1),
        "first_token_ms": round(median(run["prompt_ms"] for run in results), 1),
    }
    if as_json:
        print_json(report)
        return
    for key, value in report.items():
        click.echo(f"{key:<16} {value}")
