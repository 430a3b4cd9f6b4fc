"""`python -m ops.bench.growth FILE`: what a chunk of a prompt and a decoded token cost the deeper the context.

One conversation is grown to the last depth once by both engines, 512 tokens at a time and in turn, so that both meet
the same hour of the machine; around every depth the chunks and steps are timed.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np

from neuron.kernels.threads import default_threads
from ops.bench.__main__ import IDS
from ops.bench.engine import Engine, Neuron
from ops.bench.llama_cpp_engine import LlamaCpp, has_llama_cpp
from ops.bench.machine import median

_CHUNK = 512
#: Threads of the engine before may still spin for work.
_REST_S = 0.05


@click.command()
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.option("--depths", default="1024,4096,16384,32768", show_default=True, help="Tokens held, multiples of 512.")
@click.option("--tokens", default=12, show_default=True, help="Tokens decoded at each depth.")
@click.option("--threads", default=0, help="Threads of both engines; all cores by default.")
@click.option("--llama-python", default=sys.executable, help="Interpreter that has llama-cpp-python.")
def main(file: Path, depths: str, tokens: int, threads: int, llama_python: str) -> None:
    """Measure FILE, a GGUF file."""
    count = threads or default_threads()
    places = sorted({int(part) // _CHUNK * _CHUNK for part in depths.split(",") if part} - {0})
    context = places[-1] + len(places) * tokens + 64
    engines: list[Engine] = [Neuron(file, context, count)]
    if has_llama_cpp(llama_python):
        engines.append(LlamaCpp(llama_python, file, context, count))
    names = [engine.name for engine in engines]
    click.echo(
        "| held | " + " | ".join(f"{n}: chunk of 512, decode; growth" for n in names) + " | chunk, decode ratio |"
    )
    click.echo("| --- " * (len(engines) + 2) + "|")
    try:
        _grow(engines, places, tokens)
    finally:
        for engine in engines:
            engine.close()


def _grow(engines: Sequence[Engine], places: Sequence[int], tokens: int) -> None:
    random = np.random.default_rng(0)
    for engine in engines:
        engine.prefill(random.integers(*IDS, _CHUNK).tolist())
    first: list[tuple[float, float]] = []
    recent: list[list[float]] = [[] for _ in engines]
    for held in range(2 * _CHUNK, places[-1] + 1, _CHUNK):
        ids = random.integers(*IDS, _CHUNK).tolist()
        for engine, chunks in zip(engines, recent, strict=True):
            time.sleep(_REST_S)
            chunks.append(engine.extend(ids))
        if held not in places:
            continue
        ids = random.integers(*IDS, tokens).tolist()
        # Of the last three chunks the median: they differ by less in depth than an idle machine does in time.
        found = [
            (median(times[-3:]), median(engine.decode(ids))) for engine, times in zip(engines, recent, strict=True)
        ]
        first = first or found
        click.echo(_line(held, found, first))


def _step(engine: Engine, ids: Sequence[int]) -> float:
    time.sleep(_REST_S)
    return median(engine.decode(ids))


def _line(held: int, found: Sequence[tuple[float, float]], first: Sequence[tuple[float, float]]) -> str:
    """Milliseconds of each engine with their growth since the first depth, and ratios of the last engine to ours."""
    cells = [
        f"{chunk * 1e3:.0f} ms (x{chunk / base_chunk:.2f}), {step * 1e3:.1f} ms (x{step / base_step:.2f})"
        for (chunk, step), (base_chunk, base_step) in zip(found, first, strict=True)
    ]
    ratio = f"x{found[-1][0] / found[0][0]:.2f}, x{found[-1][1] / found[0][1]:.2f}" if len(found) > 1 else "-"
    return f"| {held:,} | " + " | ".join(cells) + f" | {ratio} |"


if __name__ == "__main__":
    main()
