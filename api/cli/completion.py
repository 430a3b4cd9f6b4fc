"""`neuron completion`: the script that teaches a shell to complete commands, options and model ids."""

from typing import Any

import click

_WHERE = {
    "bash": "~/.local/share/bash-completion/completions/neuron",
    "zsh": "a directory of $fpath, as _neuron",
    "fish": "~/.config/fish/completions/neuron.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(sorted(_WHERE)))
def completion(shell: str) -> None:
    """Print the completion script for SHELL. Save it where the shell looks, or evaluate it: eval "$(neuron ...)"."""
    from click.shell_completion import get_completion_class

    from neuron.api.cli import cli

    kind = get_completion_class(shell)
    assert kind is not None
    # click only needs the program's name and the variable that it answers to.
    click.echo(kind(cli, {}, "neuron", "_NEURON_COMPLETE").source())
    click.echo(f"neuron: save this as {_WHERE[shell]}", err=True)


def complete_models(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Ids of a running daemon's models; nothing when none answers."""
    import os

    from neuron.api.cli.http import DEFAULT_URL, Api

    try:
        entries = Api(os.environ.get("NEURON_URL", DEFAULT_URL)).get("/models?all=true")
    except click.ClickException:
        return []
    return [entry["id"] for entry in entries if entry["id"].startswith(incomplete)]
