"""`neuron serve`: runs the daemon in this process."""

from pathlib import Path

import click


@click.command()
@click.option("--config", type=click.Path(path_type=Path), help="Configuration file (TOML).")
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 takes a free one.")
@click.option("--model", "models", multiple=True, metavar="ID", help="Load this model at start; may be repeated.")
@click.option("--log-level", type=click.Choice(["trace", "debug", "info", "warning", "error"]), help="How much to log.")
@click.option("--log-format", type=click.Choice(["json", "console"]), help="For journald, or for eyes.")
@click.option("--enable-scripted", is_flag=True, help="Allow scripted sources (for tests).")
def serve(
    config: Path | None,
    host: str | None,
    port: int | None,
    models: tuple[str, ...],
    log_level: str | None,
    log_format: str | None,
    enable_scripted: bool,
) -> None:
    """Run the daemon until it is told to stop."""
    import os

    from neuron.api.serve import serve as run
    from neuron.api.startup import ServeOptions, gather_settings

    options = ServeOptions(
        config=config,
        host=host,
        port=port,
        models=models,
        log_level=log_level,
        log_format=log_format,
        enable_scripted=enable_scripted,
    )
    run(gather_settings(options), os.environ)
