"""The command line. Commands import what they need when they run, so that `neuron --help` is quick."""

import sys
from importlib import import_module
from typing import Any

import click

import neuron
from neuron.runtime.errors import NeuronError

_COMMANDS = {
    "serve": ("neuron.api.cli.serve", "Run the daemon."),
    "chat": ("neuron.api.cli.chat", "Talk to a model in the terminal."),
    "models": ("neuron.api.cli.models", "List models."),
    "load": ("neuron.api.cli.models", "Load a model."),
    "unload": ("neuron.api.cli.models", "Unload a model."),
    "preflight": ("neuron.api.cli.preflight", "Check whether a model could be loaded here."),
    "doctor": ("neuron.api.cli.doctor", "Check this host and its configuration."),
    "config": ("neuron.api.cli.config", "Work with configuration files."),
    "completion": ("neuron.api.cli.completion", "Print a completion script for a shell."),
    "bench": ("neuron.api.cli.bench", "Measure speed on this host."),
}


class _Lazy(click.Group):
    """Knows its commands by name and imports one only to run it. Options alone mean `serve`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ("--help", "-h", "--version"):
            args = ["serve", *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(import_module(_COMMANDS[cmd_name][0]), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(neuron.__version__, prog_name="neuron")
def cli() -> None:
    """Serves language models on this host's accelerators, over an OpenAI-compatible API."""


def main(arguments: list[str] | None = None) -> None:
    """Entry point. Errors are one line on stderr and a status that is not zero."""
    try:
        status: Any = cli.main(args=arguments, prog_name="neuron", standalone_mode=False)
    except click.exceptions.Abort:
        _fail("interrupted", 130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except NeuronError as error:
        _fail(f"{error.message} {error.extra.get('suggestion') or ''}", 1)
    except BrokenPipeError:
        sys.exit(0)
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str, status: int) -> None:
    one_line = " ".join(message.split())
    click.echo(f"neuron: {one_line}", err=True)
    sys.exit(status)
