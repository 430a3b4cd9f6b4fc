"""`neuron preflight`: could this model be loaded here? Runs in this process; no daemon is needed."""

from pathlib import Path

import click

from neuron.api.cli.http import json_option, print_json


@click.command()
@click.argument("model_id", metavar="ID")
@json_option
@click.option("--config", type=click.Path(path_type=Path), help="Configuration file (TOML).")
@click.option("--quant", help="Quantisation, such as q4_k_m.")
@click.option("--tensor-parallel", type=click.IntRange(1))
@click.option("--device", "devices", multiple=True, help="cpu, cuda:0, ...; may be repeated.")
@click.option("--max-context", type=click.IntRange(1))
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
    import anyio

    from neuron.actors.daemon import LoadRequest
    from neuron.actors.registry import Registry
    from neuron.api.startup import ServeOptions, gather_settings

    settings = gather_settings(ServeOptions(config=config, enable_scripted=enable_scripted, port=0))
    request = LoadRequest(
        model_id=model_id,
        quant=quant,
        tensor_parallel=tensor_parallel,
        devices=devices or None,
        max_context=max_context,
    )
    report = anyio.run(Registry(settings).preflight, request)
    if as_json:
        print_json(report)
        return
    for key, value in report.items():
        if isinstance(value, dict):
            click.echo(f"{key}:")
            for name, figure in value.items():
                click.echo(f"  {name:<28} {figure}")
        else:
            click.echo(f"{key:<30} {value}")
