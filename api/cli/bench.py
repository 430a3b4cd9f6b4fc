"""`neuron bench`: measures a running daemon as its users would."""

import click

from neuron.api.cli.bench_agent import agent
from neuron.api.cli.bench_load import load
from neuron.api.cli.bench_speed import speed


class _SpeedByDefault(click.Group):
    """Anything that is no command's name is for `speed`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, "--help", "-h"):
            args = ["speed", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_SpeedByDefault)
def bench() -> None:
    """Measure a running daemon. `neuron bench [ID]` is `neuron bench speed [ID]`."""


for command in (speed, load, agent):
    bench.add_command(command)
