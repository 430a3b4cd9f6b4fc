"""`neuron models`, `neuron load`, `neuron unload`."""

from typing import Any

import click

from neuron.api.cli.completion import complete_models
from neuron.api.cli.http import Api, json_option, print_json, url_option


@click.command()
@url_option
@json_option
@click.option("--all", "everything", is_flag=True, help="Also models that are unloading or failed to load.")
def models(url: str, as_json: bool, everything: bool) -> None:
    """List the models of a running daemon."""
    entries = Api(url).get("/models?all=true" if everything else "/models")
    if as_json:
        print_json(entries)
        return
    if not entries:
        click.echo("No model is loaded.")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("id", "state", "devices", "context", "quant", "capabilities", "reason"):
        table.add_column(title)
    for entry in entries:
        table.add_row(
            entry["id"],
            entry["state"],
            ",".join(entry["device_ids"]),
            str(entry["context_length"] or "?"),
            entry["quant"] or "-",
            ",".join(entry["capabilities"]),
            entry["reason"] or "",
        )
    Console().print(table)


@click.command()
@click.argument("model_id", metavar="ID", shell_complete=complete_models)
@url_option
@json_option
@click.option("--quant", help="Quantisation, such as q4_k_m.")
@click.option("--tensor-parallel", type=click.IntRange(1), help="Split the model over this many devices.")
@click.option("--device", "devices", multiple=True, help="cpu, cuda:0, ...; may be repeated.")
@click.option("--max-context", type=click.IntRange(1), help="Context length in tokens.")
def load(
    model_id: str,
    url: str,
    as_json: bool,
    quant: str | None,
    tensor_parallel: int | None,
    devices: tuple[str, ...],
    max_context: int | None,
) -> None:
    """Load a model and wait until it can be used."""
    body: dict[str, Any] = {
        "model_id": model_id,
        "quant": quant,
        "tensor_parallel": tensor_parallel,
        "devices": list(devices) or None,
        "max_context": max_context,
    }
    api = Api(url)
    outcome = api.post("/models/load", body) if as_json else _load_with_progress(api, body)
    if as_json:
        print_json(outcome)
        return
    already = " (it already was)" if outcome.get("already") else ""
    click.echo(f"{model_id} is {outcome['status']}{already}.")


def _load_with_progress(api: Api, body: dict[str, Any]) -> dict[str, Any]:
    """A bar on a terminal; elsewhere one line for each stage."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    outcome: dict[str, Any] = {}
    events = api.events("/models/load?stream=true", body)
    if not console.is_terminal:
        last = ""
        for event in events:
            outcome = event
            stage = str(event.get("stage", last))
            if stage != last:
                click.echo(f"{stage} ...", err=True)
            last = stage
        return outcome
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("loading", total=1.0)
        for event in events:
            outcome = event
            if "stage" in event:
                progress.update(task, description=event["stage"], completed=event["fraction"])
    return outcome


@click.command()
@click.argument("model_id", metavar="ID", shell_complete=complete_models)
@url_option
@json_option
def unload(model_id: str, url: str, as_json: bool) -> None:
    """Unload a model and free its device memory."""
    outcome = Api(url).post("/models/unload", {"model_id": model_id})
    if as_json:
        print_json(outcome)
    else:
        click.echo(f"{model_id} is {outcome['status']}.")
