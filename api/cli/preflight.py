"""`neuron preflight`: could this model be loaded here? Runs in this process; no daemon is needed."""

from pathlib import Path
from typing import Any

import click

from neuron.api.cli.http import json_option, print_json
from neuron.runtime.errors import NeuronError


@click.command()
@click.argument("model_id", metavar="ID")
@json_option
@click.option("--config", type=click.Path(path_type=Path), help="Configuration file (TOML).")
@click.option("--quant", help="Quantisation, such as q4_k_m.")
@click.option("--tensor-parallel", type=click.IntRange(1), help="Split the model over this many devices.")
@click.option("--device", "devices", multiple=True, help="cpu, cuda:0, ...; may be repeated.")
@click.option("--max-context", type=click.IntRange(1), help="Context length in tokens.")
@click.option("--enable-scripted", is_flag=True, hidden=True)
def preflight(
    model_id: str,
    as_json: bool,
    config: Path | None,
    quant: str | None,
    tensor_parallel: int | None,
    devices: tuple[str, ...],
    max_context: int | None,
    enable_scripted: bool,
) -> None:
    """Check a model's files, architecture and memory without loading it. Ends non-zero when it cannot be loaded."""
    from neuron.actors.daemon import LoadRequest
    from neuron.api.startup import ServeOptions, gather_settings

    settings = gather_settings(ServeOptions(config=config, enable_scripted=enable_scripted, port=0))
    request = LoadRequest(
        model_id=model_id,
        quant=quant,
        tensor_parallel=tensor_parallel,
        devices=devices or None,
        max_context=max_context,
    )
    report = _run(settings, request)
    if as_json:
        print_json(report)
        return
    _show(report)


def _run(settings: Any, request: Any) -> dict[str, Any]:
    """A refusal is raised bare, not inside the group of the task that met it."""
    import anyio

    from neuron.actors.offline import preflight_here

    failures: list[NeuronError] = []

    async def run() -> dict[str, Any] | None:
        try:
            return await preflight_here(settings, request)
        except* NeuronError as group:
            failures.extend(error for error in group.exceptions if isinstance(error, NeuronError))
        return None

    report = anyio.run(run)
    if report is None:
        raise failures[0]
    return report


def _show(report: dict[str, Any]) -> None:
    click.echo(f"{report['source_id']} can be loaded.")
    facts = {
        "format": report["format"],
        "architecture": report["architecture"],
        "quant": report["quant"] or report["stored_quant"],
        "files": ", ".join(report["files"]),
        "context": f"{report['context_length']} tokens (trained for {report['max_position']})",
        "vocabulary": report["vocab_size"],
        "devices": report["tensor_parallel"],
    }
    for name, value in facts.items():
        if value is not None:
            click.echo(f"  {name:<14} {value}")
    if report["budget"] is not None:
        _show_budget(report["budget"], report)
    for note in report["notes"]:
        click.echo(f"note: {note}")


def _show_budget(budget: dict[str, Any], report: dict[str, Any]) -> None:
    """The memory of one device, line by line, as the load will take it."""
    per_token = budget["kv_bytes_per_token"]
    rows = [
        ("weights", budget["weights_bytes"], ""),
        ("KV cache", budget["kv_bytes"], f"{per_token} bytes a token, {report['context_length']} tokens"),
        ("recurrent state", budget["state_bytes"], ""),
        ("workspace", budget["workspace_bytes"], "activations of one prefill chunk"),
        ("total", budget["total_bytes"], "on each device" if report["tensor_parallel"] > 1 else ""),
    ]
    if budget["free_bytes"] is not None:
        rows.append(("free", budget["free_bytes"], f"room for {report['largest_context']} tokens"))
    click.echo("memory:")
    for name, count, remark in rows:
        click.echo(f"  {name:<16} {count / (1 << 20):>10,.1f} MiB  {remark}".rstrip())
