"""`python -m ops.bench.table FILE...`: every file at every prompt and at a depth, beside llama.cpp, as ratios and as
fractions of what the machine can do. One Markdown table."""

import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.formats.gguf import open_gguf
from neuron.kernels.threads import Team, default_threads
from ops.bench.__main__ import IDS, alternate, demo_model
from ops.bench.engine import Engine, Neuron
from ops.bench.llama_cpp_engine import LlamaCpp, has_llama_cpp
from ops.bench.machine import Machine, measure, median

_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"


class Work:
    """What one token of the model in `path` costs. `flops`: of a token in prefill. `nbytes`: read for a decoded one."""

    def __init__(self, path: Path) -> None:
        tensors = open_gguf((path,)).tensors
        tied = _HEAD not in tensors
        matrices = {name: tensor for name, tensor in tensors.items() if len(tensor.shape) > 1}
        # Of the embedding one row is read, unless it is the head too; prefill needs the head for its last token only.
        inner = [tensor for name, tensor in matrices.items() if name not in (_EMBEDDING, _HEAD)]
        self.flops = 2 * sum(math.prod(tensor.shape) for tensor in inner)
        self.nbytes = sum(tensor.nbytes for name, tensor in matrices.items() if tied or name != _EMBEDDING)
        self.types = ", ".join(sorted({GgmlType(tensor.ggml_type).name for tensor in matrices.values()}))


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--prompts", default="512,2048", show_default=True, help="Tokens of each prompt that is timed.")
@click.option("--depth", default=1024, show_default=True, help="Tokens held when decoding is timed at depth; 0: never.")
@click.option("--tokens", default=32, show_default=True, help="Tokens decoded after each prompt.")
@click.option("--rounds", default=3, show_default=True, help="Alternating rounds, after one that does not count.")
@click.option("--threads", default=0, help="Threads of both engines; all cores by default.")
@click.option("--llama-python", default=sys.executable, help="Interpreter that has llama-cpp-python.")
@click.option(
    "--transformers",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder with the weights of FILES as safetensors, to be run by transformers too.",
)
def main(
    files: tuple[Path, ...],
    prompts: str,
    depth: int,
    tokens: int,
    rounds: int,
    threads: int,
    llama_python: str,
    transformers: Path | None,
) -> None:
    """Measure FILES, GGUF files; the demo model by default."""
    count = threads or default_threads()
    lengths = [int(part) for part in prompts.split(",") if part]
    peer = has_llama_cpp(llama_python)
    for path in files or (demo_model(),):
        team = Team(count)
        machine = measure(team)
        team.close()
        rates = f"reads {machine.bandwidth / 1e9:.1f} GB/s, bf16 products {machine.matrix_rate / 1e9:.0f} GFLOP/s"
        work = Work(path)
        click.echo(f"\n{path.name} ({work.types}): {count} threads; {rates}\n")
        context = max([*lengths, depth]) + tokens + 64
        engines: list[Engine] = [Neuron(path, context, count)]
        if transformers is not None:
            # Takes a second to import, which few ask for.
            from ops.bench.transformers_engine import Transformers

            engines.append(Transformers(transformers, count))
        if peer:
            engines.append(LlamaCpp(llama_python, path, context, count))
        try:
            for line in rows(engines, work, lengths, depth, tokens, rounds, machine):
                click.echo(line)
        finally:
            for engine in engines:
                engine.close()


def rows(
    engines: Sequence[Engine],
    work: Work,
    lengths: Sequence[int],
    depth: int,
    tokens: int,
    rounds: int,
    machine: Machine,
    chosen: tuple[int, int] = IDS,
) -> Iterator[str]:
    """Lines of the table of one file, as they are found; token ids are from `chosen`."""
    yield "| work | " + " | ".join(engine.name for engine in engines) + " | ratio | of the machine |"
    yield "| --- " * (len(engines) + 3) + "|"
    decoded = 0
    for length in sorted({*lengths, depth} - {0}):
        times = alternate(engines, length, tokens, rounds, chosen)
        if length in lengths:
            prefill = [median(found.prefill) / length for found in times]
            yield _line(f"prefill {length}", prefill, work.flops / machine.matrix_rate)
        if length == depth or (not decoded and length in lengths):
            decode = [median(found.decode) for found in times]
            yield _line(f"decode at {length}", decode, work.nbytes / machine.bandwidth)
            decoded += 1


def _line(name: str, seconds: Sequence[float], least: float) -> str:
    """Rates of one kind of work: `seconds` a token of each engine, `least` where the machine is all that counts."""
    ratio = ", ".join(f"{peer / seconds[0]:.2f}" for peer in seconds[1:]) or "-"
    rates = " | ".join(f"{1 / value:.1f} tok/s" for value in seconds)
    return f"| {name} | {rates} | {ratio} | {least / seconds[0]:.0%} |"


if __name__ == "__main__":
    main()
