"""The benches at a small scale: that they measure what they say, not how fast it is."""

import json
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner

from neuron.kernels.engine import LoadSpec
from neuron.kernels.load import load_model
from ops.bench import overhead, prefix_memory
from ops.bench.agent import Agent, measure, sizes
from ops.bench.startup import _has_text
from tests.kernels.hybrid.converted import write
from tests.kernels.hybrid.tiny import tiny_hybrid

pytestmark = pytest.mark.timeout(300)


def test_overhead_counts_each_step_and_each_change_of_hands() -> None:
    arguments = ["--vocabulary", "3000", "--tokens", "12", "--step-ms", "1", "--rounds", "3", "--json"]
    report = json.loads(CliRunner().invoke(overhead.main, arguments, catch_exceptions=False).output)
    assert set(report["row_to_next_step_us"]) == set(overhead.SAMPLING)
    assert all(0 < taken < 1e6 for taken in report["row_to_next_step_us"].values())
    assert all(taken > 0 for taken in report["first_token_ms"].values())
    assert report["release_to_next_ms"] > 0
    with overhead.Daemon(3000, 1.0) as daemon:
        daemon.figures()
        connection = daemon.connect()
        last = list(overhead.stream(connection, "go", 7, temperature=0))[-1]
        assert last["usage"]["completion_tokens"] == 7
        connection.close()
        # Seven rows, and none is wanted after the last.
        assert len(daemon.figures()["row_to_step"]) == 6


def test_turns_of_the_agent() -> None:
    assert sizes(4, 400, 0) == [100] * 4
    assert sizes(5, 8192, 6144) == [6144, 512, 512, 512, 512]


@pytest.fixture(scope="module", name="agent")
def _agent(tmp_path_factory: pytest.TempPathFactory) -> Agent:
    folder = tmp_path_factory.mktemp("model")
    path = write(tiny_hybrid(folder), folder / "tiny.gguf")
    spec = LoadSpec("gguf", (path,), 512)
    return Agent(load_model(spec, "cpu", lambda stage, done: None, threads=1), 1)


def test_memory_held_is_the_budget_and_no_more(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_memory, "_LONGEST", 200)
    vocabulary = agent.device.model.vocab_size
    monkeypatch.setattr(prefix_memory, "_IDS", (4, vocabulary))
    agent.cache.budget = 200_000
    held = anyio.run(prefix_memory.measure, agent, 40, 3, 64)
    assert held.evictions > 3
    assert 0.5 * held.budget < held.kept <= held.budget
    assert held.restores
    assert all(tokens > 0 for _, tokens in held.restores)


def test_an_agent_computes_what_is_new(agent: Agent, tmp_path: Path) -> None:
    agent.cache.budget = 1 << 20

    async def run() -> list[tuple[int, int]]:
        found = await measure(
            agent, None, [90, 70, 70, 70], cold=True, other=False, ids=(4, agent.device.model.vocab_size)
        )
        return [(turn.reused, turn.known) for turn in found]

    assert anyio.run(run) == [(0, 0), (90, 90), (160, 160), (230, 230)]


def test_a_first_token_is_text() -> None:
    assert _has_text(b'data: {"choices":[{"delta":{"content":"x"}}]}')
    assert not _has_text(b'data: {"choices":[{"delta":{"role":"assistant"}}]}')
    assert not _has_text(b"data: [DONE]")
