"""PNG files for `neuron bench --plot`, drawn by matplotlib: an extra that is imported only when asked for."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

Points = tuple[Sequence[float], Sequence[float]]
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def plot_option(command: Decorated) -> Decorated:
    path = click.Path(dir_okay=False, writable=True, path_type=Path)
    return click.option("--plot", type=path, metavar="FILE.png", help="Also draw it into a PNG file.")(command)


def need_plots(path: Path | None) -> None:
    """Before anything is measured: can `path` be drawn? Raises ClickException."""
    if path is None:
        return
    if path.suffix.lower() != ".png":
        raise click.ClickException(f"--plot writes PNG files; '{path.name}' does not end in .png.")
    if not path.parent.is_dir():
        raise click.ClickException(f"there is no folder '{path.parent}'.")
    if importlib.util.find_spec("matplotlib") is None:
        raise click.ClickException("--plot needs matplotlib: pip install 'neuron[plot]'.")


def curves(path: Path, title: str, x_label: str, panels: Mapping[str, Mapping[str, Points]]) -> None:
    """One panel for each entry; its curves by name, each with a mark at every point."""
    figure, axes = _page(title, len(panels))
    for axis, (name, lines) in zip(axes, panels.items(), strict=True):
        for label, (xs, ys) in lines.items():
            axis.plot(xs, ys, marker="o", label=label)
        axis.set(xlabel=x_label, ylabel=name)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        if len(lines) > 1:
            axis.legend()
    figure.savefig(path, dpi=120)


def shares(path: Path, title: str, panels: Mapping[str, Sequence[float]]) -> None:
    """For each entry the share of its values that lie at or below x."""
    figure, axes = _page(title, len(panels))
    for axis, (name, values) in zip(axes, panels.items(), strict=True):
        if values:
            axis.ecdf(values)
        axis.set(xlabel=name, ylabel="share")
        axis.set_xlim(left=0)
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def _page(title: str, panels: int) -> tuple[Any, Sequence[Any]]:
    """Without pyplot, which would look for a display."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5 * panels, 4.0), layout="constrained")
    figure.suptitle(title)
    return figure, figure.subplots(1, panels, squeeze=False)[0]
