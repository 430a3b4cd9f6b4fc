"""No step of the decode loop allocates or moves anything in the cache: it is made when a sequence begins, and stays."""

import mmap
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from numba.core.runtime import _nrt_python, rtsys

from neuron.kernels.attention.cache import KvCache
from neuron.kernels.decoder.model import DecoderModel
from neuron.kernels.decoder.sequence import SequenceCache
from neuron.kernels.gdn.state import RecurrentState
from tests.kernels.decoder.tiny import load, some_ids, tiny
from tests.kernels.hybrid.tiny import tiny_hybrid

pytestmark = pytest.mark.timeout(300)

PROMPT, STEPS = 30, 300
#: Bytes that one step may hold at its height: a few small arrays and numbers. Every cache below is far larger.
MOST_BYTES = 8_000
#: Arrays that a step is handed: tokens and the table of layers. Numba counts its description of each, on each thread.
ARRAYS = 2
#: Keys and values of the prompt alone, or the states of the linear layers, are several times MOST_BYTES.
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {"hidden_size": 128, "num_hidden_layers": 2},
    "hybrid": {"linear_value_head_dim": 64, "linear_key_head_dim": 32},
}


class Watch:
    """Counts what steps do to memory. `places`: what each cache and buffer is at, before and after."""

    def __init__(self, model: DecoderModel) -> None:
        self._model = model

    def places(self) -> list[tuple[int, ...]]:
        found = []
        for cache in self._model._sequences.values():
            found.append((cache.kv.address, cache.kv.rows.nbytes, *cache.kv.rows.strides))
            if cache.state is not None:
                found.append((cache.state.address, cache.state.data.nbytes))
        arena = self._model._workspace.arena
        return [*found, *((block.ctypes.data, block.nbytes) for block in arena._held.values())]

    def most_bytes(self, step: Callable[[], None]) -> int:
        """The most that Python and numpy held beyond what they held before, during one call."""
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        step()
        return tracemalloc.get_traced_memory()[1] - before


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is made anew: caches, states, mappings."""
    names: list[str] = []

    def counted(owner: Any, attribute: str) -> None:
        original = getattr(owner, attribute)

        def call(*arguments: Any, **options: Any) -> Any:
            names.append(f"{owner.__name__}.{attribute}")
            return original(*arguments, **options)

        monkeypatch.setattr(owner, attribute, call)

    counted(KvCache, "__init__")
    counted(RecurrentState, "__init__")
    counted(mmap, "mmap")
    tracemalloc.start()
    _nrt_python.memsys_enable_stats()
    yield names
    _nrt_python.memsys_disable_stats()
    tracemalloc.stop()


def opened(folder: Path, family: str) -> DecoderModel:
    if family == "hybrid":
        tiny_hybrid(folder, **FAMILIES[family])
    else:
        tiny(folder, family, **FAMILIES[family])
    model = load(folder)
    assert isinstance(model, DecoderModel)
    return model


def stepper(model: DecoderModel, sequence: int = 0) -> Callable[[], None]:
    """One token more of `sequence`, with logits, at each call."""
    logits = np.zeros(model.vocab_size, dtype=np.float32)
    ids = np.maximum(some_ids(1000), 1)  # id 0 is all zeros

    def step() -> None:
        position = model.length(sequence)
        model.forward(sequence, ids[position : position + 1], position, logits)

    return step


def rows_of(model: DecoderModel) -> npt.NDArray[np.generic]:
    return model._sequences[0].kv.rows


@pytest.mark.parametrize("family", FAMILIES)
def test_no_step_allocates_or_moves_the_cache(
    family: str, tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 steps, over the lengths at which attention changes its way; each writes its own position and no other."""
    model = opened(tmp_path, family)
    model.forward(0, some_ids(PROMPT), 0, None)
    watch, step = Watch(model), stepper(model)
    step()
    places, before = watch.places(), rows_of(model).copy()
    state = model._sequences[0].state
    sizes = [rows_of(model)[:, :, :, :PROMPT].nbytes, *([] if state is None else [state.data.nbytes])]
    assert min(sizes) > MOST_BYTES
    made.clear()
    monkeypatch.setattr(model._team, "adapt", lambda: False)
    compiled = rtsys.get_allocation_stats().alloc
    found = [watch.most_bytes(step) for _ in range(STEPS)]
    assert made == []
    assert rtsys.get_allocation_stats().alloc - compiled == STEPS * ARRAYS * model._team.active
    assert watch.places() == places
    assert max(found) < MOST_BYTES
    after, length = rows_of(model).copy(), PROMPT + 1
    np.testing.assert_array_equal(after[:, :, :, :length], before[:, :, :, :length])
    assert np.abs(np.asarray(after[:, :, :, length : length + STEPS], np.float32)).max(axis=(0, 1, 2, 4)).all()
    assert not np.asarray(after[:, :, :, length + STEPS :]).any()
    model.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_by_chunks_leave_the_cache_where_it_is(family: str, tmp_path: Path, made: list[str]) -> None:
    """Only a sequence's first token makes a cache; chunks, steps between them and a second text do not."""
    model = opened(tmp_path, family)
    made.clear()
    assert model._free  # of the warm-up
    watch, ids, position = Watch(model), some_ids(1000), 0
    for count in (1, 17, 1, 600, 1, 1, 64, 1):
        model.forward(0, ids[position : position + count], position, None)
        position += count
        if count == 1 and position == 1:
            places = watch.places()
        assert watch.places() == places
    model.clear(0)
    model.forward(0, ids[:40], 0, None)
    assert watch.places() == places
    assert made == []
    model.forward(1, ids[:40], 0, None)
    each = ["KvCache.__init__", "mmap.mmap", *(["RecurrentState.__init__"] if family == "hybrid" else [])]
    assert sorted(made) == sorted(each)
    made.clear()
    both, steps = watch.places(), [stepper(model, sequence) for sequence in (0, 1)]
    for _ in range(20):
        for step in steps:
            step()
    assert (made, watch.places()) == ([], both)
    model.close()


def copied(model: DecoderModel) -> None:
    model._sequences[0].kv.rows[:, :, :, : model.length(0)].copy()


def moved(model: DecoderModel) -> None:
    """Only the bookkeeping: the old rows stay where compiled code still reads them."""
    cache, (layers, _, kv_heads, context, dim) = model._sequences[0], rows_of(model).shape
    model._free.append(SequenceCache(cache.kv))
    cache.kv = KvCache(cache.kv.kind, layers, kv_heads, dim, context)


@pytest.mark.parametrize("mutation", [copied, moved])
def test_the_watch_sees_a_copy_and_a_move(
    mutation: Callable[[DecoderModel], None], tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = opened(tmp_path, "Llama")
    model.forward(0, some_ids(PROMPT), 0, None)
    watch, step = Watch(model), stepper(model)
    step()
    places, original = watch.places(), model._splits
    made.clear()

    def mutated(n: int, length: int) -> int:
        mutation(model)
        return original(n, length)

    monkeypatch.setattr(model, "_splits", mutated)
    large = watch.most_bytes(step) >= MOST_BYTES
    if mutation is copied:
        assert large
    else:
        assert watch.places() != places
        assert made == ["KvCache.__init__", "mmap.mmap"]
    model.close()


def test_compiled_code_that_allocates_is_counted(made: list[str]) -> None:
    """The counter of compiled arrays works here: it is what the first test relies on."""
    from numba import njit

    allocates = njit(lambda count: np.ones(count).sum())
    before = rtsys.get_allocation_stats().alloc
    assert allocates(100) == 100.0
    assert rtsys.get_allocation_stats().alloc > before
