"""`python -m ops.bench.prefix_memory FILE.gguf`: what kept prefixes take of memory, and what going back to them costs.

Conversations grow and begin anew in turn until the budget is long full: what is held, what the process grew by, whether
it still grows, and the time of a restore beside that of a prefill of 64 tokens.
"""

import resource
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import anyio
import click
import numpy as np

from neuron.kernels.engine import LoadSpec
from neuron.kernels.load import load_model
from neuron.kernels.threads import default_threads
from neuron.runtime.logs import configure_logging
from ops.bench.agent import Agent

MIB = 1 << 20
_TURN_END, _TAIL = 1, [2, 3, 4, 5]
#: Random ids are between these.
_IDS = (100, 1000)
#: A conversation begins anew when it has more tokens.
_LONGEST = 1024
_PREFILL = 64


@dataclass(slots=True)
class Held:
    """Bytes, and seconds of each restore that had to copy rows, with the tokens it brought back."""

    before: int = 0
    when_full: int = 0
    at_end: int = 0
    kept: int = 0
    budget: int = 0
    evictions: int = 0
    restores: list[tuple[float, int]] = field(default_factory=list)
    prefills: list[float] = field(default_factory=list)


async def measure(agent: Agent, turns: int, conversations: int, size: int) -> Held:
    """`turns` in all, each of `size` new tokens, over `conversations` that take the sequence from each other."""
    chance = np.random.default_rng(0)
    # What is allocated for prompts of this length anyway is there before the first figure.
    await agent.without(chance.integers(*_IDS, _LONGEST + size).tolist())
    held = Held(before=resident_bytes(), budget=agent.cache.budget)
    talks: list[list[int]] = [[] for _ in range(conversations)]
    for number in range(turns):
        talk = talks[number % conversations]
        if len(talk) > _LONGEST:
            talk.clear()
        talk += [*chance.integers(*_IDS, size - 1).tolist(), _TURN_END]
        before = agent.cache.counters.restore_ms
        _, reused = await agent.warm(talk + _TAIL)
        spent = (agent.cache.counters.restore_ms - before) / 1e3
        if reused:
            held.restores.append((spent, reused))
        if number % 10 == 0:
            held.prefills.append(await agent.without(chance.integers(*_IDS, _PREFILL).tolist()))
        if not held.when_full and agent.cache.counters.evictions >= conversations:
            held.when_full = resident_bytes()
    held.at_end, held.kept, held.evictions = resident_bytes(), agent.cache.tree.nbytes, agent.cache.counters.evictions
    return held


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def report(held: Held, turns: int) -> None:
    share = held.kept / held.budget
    click.echo(f"kept {held.kept / MIB:.1f} of {held.budget / MIB:.1f} MiB ({share:.1%}) after {turns} turns")
    click.echo(f"  {held.evictions} evictions; the process grew by {(held.at_end - held.before) / MIB:.1f} MiB")
    if held.when_full:
        click.echo(f"  since the budget was full it grew by {(held.at_end - held.when_full) / MIB:.1f} MiB")
    else:
        click.echo("  the budget was never full: more turns or a smaller budget say more")
    if held.restores:
        spent, tokens = median(one for one, _ in held.restores), median(count for _, count in held.restores)
        prefill = median(held.prefills)
        click.echo(
            f"a restore of {tokens:.0f} tokens takes {spent * 1e3:.2f} ms, "
            f"a prefill of {_PREFILL} tokens {prefill * 1e3:.2f} ms (x{spent / prefill:.3f})"
        )


@click.command()
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@click.option("--turns", default=200, show_default=True)
@click.option("--conversations", default=6, show_default=True)
@click.option("--tokens", default=128, show_default=True, help="New ones of each turn.")
@click.option("--budget-mb", default=64, show_default=True)
@click.option("--threads", default=0, help="All cores by default.")
def main(model: Path, turns: int, conversations: int, tokens: int, budget_mb: int, threads: int) -> None:
    """Measure MODEL, a GGUF file."""
    configure_logging("error", "json")
    context, count = 2 * _LONGEST, threads or default_threads()
    loaded = load_model(LoadSpec("gguf", (model,), context), "cpu", lambda stage, done: None, threads=count)
    agent = Agent(loaded, budget_mb)

    async def run() -> Held:
        return await measure(agent, turns, conversations, tokens)

    try:
        report(anyio.run(run), turns)
    finally:
        loaded.close()


if __name__ == "__main__":
    main()
