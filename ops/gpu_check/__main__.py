"""The command: `python -m ops.gpu_check [--json FILE] [--budget-s 480]`. Exit code 0 complete, 1 degraded, 2 failed."""

import sys
from pathlib import Path

import click
import msgspec

from ops.gpu_check.runner import check
from ops.gpu_check.stages import BY_NAME, STAGES


@click.command()
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write the report there too.")
@click.option("--budget-s", default=480.0, show_default=True, help="Seconds that all of it may take.")
@click.option("--device", default="cuda:0", show_default=True, help="cuda:N; cpu exercises the stages themselves.")
@click.option("--small", is_flag=True, help="Tiny shapes: for a CPU.")
@click.option("--stage", "only", multiple=True, type=click.Choice(list(BY_NAME)), help="Only these (repeatable).")
def main(file: Path | None, budget_s: float, device: str, small: bool, only: tuple[str, ...]) -> None:
    """Run the tests and timings of a GPU; the report is one JSON object on stdout, progress on stderr."""
    if device.startswith("cpu") and not small:
        raise click.UsageError("on a CPU only --small ends in time")
    chosen = [stage for stage in STAGES if not only or stage.name in only]
    report = check(device, small=small, budget_s=budget_s, say=lambda line: click.echo(line, err=True), stages=chosen)
    text = msgspec.json.format(msgspec.json.encode(report), indent=2).decode()
    if file is not None:
        file.write_text(text + "\n")
    click.echo(text)
    sys.exit(report.verdict.exit_code)


if __name__ == "__main__":
    main()
