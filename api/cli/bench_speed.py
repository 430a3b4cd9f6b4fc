"""`neuron bench speed`: prefill and decode of a loaded model over prompts of several lengths."""

import math
from pathlib import Path
from statistics import median
from typing import Any

import click

from neuron.api.cli.bench_ask import Asked, Prompts, ask, checked, longest_prompt
from neuron.api.cli.http import Api, json_option, only_model, print_json, url_option
from neuron.api.cli.plots import curves, need_plots, plot_option


def measure(api: Api, model: str, lengths: list[int], tokens: int, runs: int) -> list[dict[str, Any]]:
    """One row a length: medians over `runs`, after one that is not counted."""
    rows: list[dict[str, Any]] = []
    with api.client() as client:
        prompts = Prompts.measured(client, model)
        for length in lengths:
            found = [checked(ask(client, prompts.body(length, tokens, temperature=0))) for _ in range(runs + 1)]
            rows.append(_row(found[1:]))
    return rows


def _row(found: list[Asked]) -> dict[str, Any]:
    """`decode_tok_s` is None where no answer has a second token: there was no step to time."""
    decode = [one.timings["predicted_per_second"] for one in found if one.completion_tokens > 1]
    return {
        "prompt_tokens": round(median(one.prompt_tokens for one in found)),
        "prefill_tok_s": round(median(one.timings["prompt_per_second"] for one in found), 1),
        "first_token_ms": round(median((one.first or one.total) * 1e3 for one in found), 1),
        "decode_tokens": round(median(one.completion_tokens for one in found)),
        "decode_tok_s": round(median(decode), 1) if decode else None,
    }


@click.command()
@click.argument("model_id", metavar="[ID]", required=False)
@url_option
@json_option
@click.option(
    "--prompt",
    "lengths",
    type=click.IntRange(1, 1_000_000),
    multiple=True,
    default=(128, 512, 2048),
    show_default="128, 512, 2048",
    help="Tokens of the prompt, roughly; may be repeated.",
)
@click.option("--tokens", type=click.IntRange(1, 100_000), default=64, show_default=True, help="Tokens to generate.")
@click.option("--runs", type=click.IntRange(1, 1000), default=3, show_default=True, help="Runs that count.")
@plot_option
def speed(
    model_id: str | None, url: str, as_json: bool, lengths: tuple[int, ...], tokens: int, runs: int, plot: Path | None
) -> None:
    """Measure prefill and decode of a running daemon; prints medians. One warm-up run is not counted."""
    need_plots(plot)
    api = Api(url)
    model = only_model(api, model_id)
    longest = longest_prompt(api, model, tokens)
    # Two lengths that the context shortens to one are measured once.
    wanted = sorted({min(length, longest) for length in lengths})
    rows = measure(api, model, wanted, tokens, runs)
    if plot is not None:
        xs = [row["prompt_tokens"] for row in rows]
        panels = {
            f"{what}, tokens/s": {model: (xs, [math.nan if row[key] is None else row[key] for row in rows])}
            for what, key in (("prefill", "prefill_tok_s"), ("decode", "decode_tok_s"))
        }
        curves(plot, f"{model}: speed by prompt length", "tokens of the prompt", panels)
    if as_json:
        print_json({"model": model, "runs": runs, "rows": rows})
        return
    click.echo(f"{model}: medians of {runs}")
    click.echo(f"{'prompt':>8} {'prefill tok/s':>14} {'first token ms':>15} {'answer':>7} {'decode tok/s':>13}")
    for row in rows:
        click.echo(
            f"{row['prompt_tokens']:>8} {row['prefill_tok_s']:>14.1f} {row['first_token_ms']:>15.1f}"
            f" {row['decode_tokens']:>7} {'-' if row['decode_tok_s'] is None else row['decode_tok_s']:>13}"
        )
