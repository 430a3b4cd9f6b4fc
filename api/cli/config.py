"""`neuron config`: checks a configuration file, or turns the reference's neuron.toml into ours."""

from pathlib import Path

import click

from neuron.api.cli.http import json_option, print_json


@click.group()
def config() -> None:
    """Work with configuration files."""


@config.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def check(file: Path, as_json: bool) -> None:
    """Say whether FILE can be used."""
    from neuron.api.access import Access
    from neuron.api.startup import ServeOptions, gather_settings

    settings = gather_settings(ServeOptions(config=file))
    Access(settings.server)
    if as_json:
        print_json({"file": str(file), "ok": True, "models": [model.id for model in settings.models]})
    else:
        click.echo(f"{file} is fine.")


@config.command()
@click.argument("file", type=click.Path(path_type=Path))
def convert(file: Path) -> None:
    """Print the reference daemon's FILE in neuron's form; what has no counterpart is listed on stderr."""
    from neuron.api.reference_config import convert_file

    converted = convert_file(file)
    for note in converted.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(converted.toml, nl=False)
