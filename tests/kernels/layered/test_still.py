"""No step of the layered engine allocates or moves anything in the cache, on the ways of a CPU and of a GPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from neuron.kernels.layered.load import EngineOptions
from neuron.kernels.layered.model import LayeredModel
from neuron.kernels.layered.placement import Kernels
from neuron.kernels.layered.rows import DeviceRows, HostRows
from neuron.kernels.layered.state import DeviceState
from tests.kernels.decoder.tiny import some_ids
from tests.kernels.layered.families import FULL, LINEAR, make
from tests.kernels.layered.ranks import load
from tests.kernels.layered.recorders import Again

pytestmark = pytest.mark.timeout(300)

PROMPT, STEPS = 130, 300
HYBRID: dict[str, Any] = {"layer_types": [LINEAR, FULL], "linear_key_head_dim": 32, "linear_value_head_dim": 64}
WAYS = {
    "compiled": EngineOptions(Kernels.COMPILED),
    "tensors": EngineOptions(Kernels.TENSORS),
    "replayed": EngineOptions(Kernels.TENSORS, Again()),
}


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The largest memory that an operation made: storages that were not among its arguments."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nbytes = 0
        self.name = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_place(value) for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for value in tree_flatten(result)[0]:
            if isinstance(value, torch.Tensor) and _place(value) not in given:
                size = value.untyped_storage().nbytes()
                if size > self.nbytes:
                    self.nbytes, self.name = size, str(func)
        return result


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def places(model: LayeredModel) -> list[tuple[int, ...]]:
    """Where each cache, state and static buffer is, and how large."""
    held = [model._sequences[0].rows.rows]
    state, step = model._sequences[0].state, model._sequences[0].step
    held += [] if state is None else [state.data]
    held += [] if step is None else [step._on_device, step._inputs]
    return [(tensor.data_ptr(), tensor.nbytes, *tensor.stride()) for tensor in held]


def stepper(model: LayeredModel) -> Callable[[], None]:
    logits, ids = np.zeros(model.vocab_size, dtype=np.float32), np.maximum(some_ids(1000), 1)  # id 0 is all zeros

    def step() -> None:
        position = model.length(0)
        model.forward(0, ids[position : position + 1], position, logits)

    return step


def opened(folder: Path, family: str, way: str) -> LayeredModel:
    make(folder, family, **(HYBRID if family == "hybrid" else {}))
    return load(folder, options=WAYS[way])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", ["llama", "hybrid"])
def test_no_step_allocates_or_moves_the_cache(
    family: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 300 steps writes its own position and no other, and makes no tensor as large as a layer's keys."""
    model = opened(tmp_path, family, way)
    model.forward(0, some_ids(PROMPT), 0, None)
    made: list[str] = []
    for kind in (HostRows, DeviceRows, DeviceState):
        monkeypatch.setattr(kind, "__init__", lambda self, *given, kind=kind: made.append(kind.__name__))
    step = stepper(model)
    before_places, before = places(model), model._sequences[0].rows.rows.clone()
    smallest = min([before[0, 0, :, :PROMPT].nbytes, *_state_sizes(model)])
    with Largest() as largest:
        for _ in range(STEPS):
            step()
    assert made == []
    assert places(model) == before_places
    assert largest.nbytes < smallest, largest.name
    end, rows = PROMPT + STEPS, model._sequences[0].rows.rows.clone()
    assert torch.equal(rows[:, :, :, :PROMPT], before[:, :, :, :PROMPT])
    assert bool(rows[:, :, :, PROMPT:end].float().abs().amax((0, 1, 2, 4)).all())
    assert not bool(rows[:, :, :, end:].any())
    model.close()


def _state_sizes(model: LayeredModel) -> list[int]:
    state = model._sequences[0].state
    return [] if state is None else [state.recurrent(0).nbytes]


@pytest.mark.parametrize("way", WAYS)
def test_chunks_and_a_second_text_leave_the_cache_where_it_is(way: str, tmp_path: Path) -> None:
    model, ids, position, found = opened(tmp_path, "hybrid", way), some_ids(1000), 0, []
    for count in (1, 17, 1, 600, 1, 64, 1):
        model.forward(0, ids[position : position + count], position, None)
        position += count
        found.append(places(model))
    model.clear(0)
    model.forward(0, ids[:40], 0, None)
    assert all(place == found[0] for place in [*found, places(model)])
    model.close()


def test_a_copy_in_each_step_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = opened(tmp_path, "llama", "tensors")
    model.forward(0, some_ids(PROMPT), 0, None)
    rows, original = model._sequences[0].rows, model._running.run

    def copying(*given: Any) -> None:
        rows.rows[:, :, :, : model.length(0)].clone()
        original(*given)

    monkeypatch.setattr(model._running, "run", copying)
    with Largest() as largest:
        stepper(model)()
    assert largest.nbytes >= rows.rows[0, 0, :, :PROMPT].nbytes
    model.close()
