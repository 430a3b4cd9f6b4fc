"""Nothing wrong ever: whatever ran before, an answer is that of an empty cache; and a copy left out is noticed."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuron.actors.device import jobs
from neuron.actors.device.jobs import Job
from neuron.kernels.engine import DeviceModel
from neuron.kernels.prefix import store
from tests.kernels.decoder.tiny import load, tiny
from tests.kernels.hybrid.tiny import tiny_hybrid
from tests.kernels.prefix.trees import Asked, Conversations, compare

pytestmark = pytest.mark.anyio
#: `NEURON_TREES=1000` runs the property over that many prompts.
ROUNDS = int(os.environ.get("NEURON_TREES", "16"))
BIG = 1 << 30


def _llama(folder: Path) -> DeviceModel:
    tiny(folder, "Llama")
    return load(folder, threads=1)


def _qwen3(folder: Path) -> DeviceModel:
    tiny(folder, "Qwen3", head_dim=32)
    return load(folder, threads=1)


def _hybrid(folder: Path) -> DeviceModel:
    tiny_hybrid(folder)
    return load(folder, threads=1)


def _hybrid_bf16(folder: Path) -> DeviceModel:
    tiny_hybrid(folder)
    return load(folder, quant="bf16", threads=1)


MODELS: dict[str, Callable[[Path], DeviceModel]] = {
    "llama": _llama,
    "qwen3": _qwen3,
    "hybrid": _hybrid,
    "hybrid-bf16": _hybrid_bf16,
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceModel]:
    made = MODELS[request.param](tmp_path_factory.mktemp(request.param))
    yield made
    made.close()


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceModel]:
    made = _hybrid(tmp_path_factory.mktemp("hybrid"))
    yield made
    made.close()


def same(found: Asked, wanted: Asked) -> None:
    """To the last bit: a prompt is computed in the same pieces, whatever is kept of it."""
    assert found.tokens == wanted.tokens
    assert np.array_equal(found.row, wanted.row), float(np.abs(found.row - wanted.row).max())


@pytest.mark.parametrize("budget", [BIG, 200_000], ids=["roomy", "tight"])
async def test_answers_are_those_of_an_empty_cache(model: DeviceModel, budget: int) -> None:
    talk = Conversations(model, budget, seed=ROUNDS)
    reused = await compare(talk, ROUNDS, same)
    figures = talk.cache.figures()
    assert reused > 0
    assert figures.failed_restores == 0
    assert figures.bytes_used <= budget
    if budget != BIG:
        assert figures.evictions > 0
    talk.close()


async def test_memory_held_is_the_budget_and_no_more(hybrid: DeviceModel) -> None:
    """`close` compares what the model holds with what the daemon counts."""
    budget = 2_000_000
    talk = Conversations(hybrid, budget, seed=3)
    for _ in range(30):
        await talk.warm(talk.next_prompt(), 1)
        assert talk.cache.tree.nbytes <= budget
    assert talk.cache.tree.nbytes > 0.95 * budget
    assert talk.cache.counters.evictions > 0
    talk.close()


async def test_a_state_that_is_not_copied_is_noticed(hybrid: DeviceModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "put_state", lambda cache, block: None)
    talk = Conversations(hybrid, BIG, seed=1)
    with pytest.raises(AssertionError):
        await compare(talk, 24, same)
    talk.close()


async def test_rows_that_are_not_copied_are_noticed(hybrid: DeviceModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "put_rows", lambda cache, block, begin: None)
    talk = Conversations(hybrid, BIG, seed=1)
    with pytest.raises(AssertionError):
        await compare(talk, 24, same)
    talk.close()


@pytest.mark.parametrize("kind", [jobs.RestorePrefix, jobs.SaveRows, jobs.SaveState, jobs.ForwardLogits])
async def test_jobs_that_fail_cost_the_reuse_alone(hybrid: DeviceModel, kind: type[Any]) -> None:
    """A restore that fails is answered by a cold prefill; a step that fails fails its request, and the next is well."""
    talk = Conversations(hybrid, BIG, seed=5)
    prompt = talk.next_prompt() + talk.next_prompt()
    await talk.warm(prompt, 2)
    talk.device.before = _fail_once(kind)
    longer = prompt + talk.next_prompt()
    try:
        found = await talk.warm(longer, 2)
    except Exception:
        assert kind is jobs.ForwardLogits
        talk.cache.lost()
        found = await talk.warm(longer, 2)
    assert found is not None
    assert (found.reused == 0) is (kind is jobs.RestorePrefix)
    same(found, await talk.cold(longer, 2))
    again = await talk.warm(longer, 2)
    assert again is not None
    same(again, found)
    talk.close()


def _fail_once(kind: type[Any]) -> Callable[[Job], None]:
    left = [kind]

    def before(job: Job) -> None:
        if left and isinstance(job, left[0]):
            left.clear()
            raise ValueError("as armed")

    return before
