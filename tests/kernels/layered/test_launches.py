"""What the engine launches on a GPU, seen without one: types and shapes of every launch, and what a recording holds.

Kernels are not run: launches are noted, and results are whatever was in memory.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numba import types
from torch.utils._python_dispatch import TorchDispatchMode

from neuron.kernels import cuda as shim
from neuron.kernels.engine import LoadSpec
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.fused import launch as fused
from neuron.kernels.fused.attend import cuda as attending
from neuron.kernels.fused.gate import cuda as gating
from neuron.kernels.fused.rms_norm import cuda as norming
from neuron.kernels.fused.rope import cuda as roping
from neuron.kernels.gdn.decode import cuda as decoding
from neuron.kernels.gdn.recurrent import cuda as recurring
from neuron.kernels.layered import cuda_delta
from neuron.kernels.layered.load import EngineOptions, load_layered
from neuron.kernels.layered.model import LayeredModel
from neuron.kernels.layered.placement import Kernels
from neuron.kernels.quant.cuda import expand, matvec, products
from neuron.kernels.quant.cuda.unpack import layout
from neuron.kernels.threads import Team
from ops.gpu_check.random_model import SHAPES, opened, tiny

pytestmark = pytest.mark.timeout(300)

#: Of a grid: blocks along x, along y and z.
MOST_BLOCKS, MOST_ACROSS = (1 << 31) - 1, 65_535
#: What makes the host wait for the device, or asks it for a number: nothing that a recording may hold.
WAITING = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "unique_dim", "_unique2"}
KINDS = [(GgmlType.F32, GgmlType.F32), (GgmlType.BF16, GgmlType.BF16), (GgmlType.Q4_K, GgmlType.Q6_K)]


@dataclass(frozen=True)
class Launch:
    """`function` by identity: one that is made anew is compiled anew."""

    function: Callable[..., None]
    grid: tuple[int, ...]
    block: int
    types: tuple[Any, ...]

    @property
    def compiled(self) -> tuple[Any, ...]:
        """What a compilation is made for."""
        return (self.function, self.block, self.types)


class Launches:
    """In the place of neuron.kernels.cuda.launch. `recording`: indices of launches inside a recording."""

    def __init__(self) -> None:
        self.all: list[Launch] = []
        self.recording: list[int] = []
        self._recording = False

    def launch(self, compiled: Any, grid: tuple[int, ...], block: int, arguments: tuple[Any, ...]) -> None:
        if self._recording:
            self.recording.append(len(self.all))
        self.all.append(Launch(compiled._function, grid, block, tuple(numba_type(value) for value in arguments)))

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Implements layered.graph.Recorder as CUDA does: the work is done while it is recorded, and may not wait."""
        self._recording = True
        with Waits():  # type: ignore[no-untyped-call]
            work()
        self._recording = False
        return lambda: None


class Waits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in WAITING, func
        return func(*args, **(kwargs or {}))


def numba_type(value: Any) -> Any:
    """As numba.cuda types what `neuron.kernels.cuda.launch` hands it."""
    if not isinstance(value, torch.Tensor):
        return {bool: types.boolean, int: types.int64, float: types.float32, np.float32: types.float32}[type(value)]
    bits = value.view(torch.int16) if value.dtype is torch.bfloat16 else value
    assert bits.data_ptr() % bits.element_size() == 0
    kind = {
        torch.float32: types.float32,
        torch.float16: types.float16,
        torch.int16: types.int16,
        torch.int32: types.int32,
        torch.int64: types.int64,
    }[bits.dtype]
    return types.Array(kind, bits.ndim, "C" if bits.is_contiguous() else "A")


def assembled_types() -> dict[str, set[tuple[Any, ...]]]:
    """By the name of a kernel's function, the types that the tests compile and assemble it for."""
    yes_no = (False, True)
    blocks = [layout(kind) for kind in (GgmlType.Q4_K, GgmlType.Q6_K)]
    two, three = list(product(yes_no, repeat=2)), list(product(yes_no, repeat=3))
    made: dict[str, list[Any]] = {
        "multiply": [
            matvec.signature(block, bfloat16_in=given, bfloat16_out=out) for block in blocks for given, out in two
        ],
        "expand": [expand.signature(block, bfloat16=out) for block in blocks for out in yes_no],
        "attend": [attending.signature(bfloat16_query=query, bfloat16_rows=rows) for query, rows in two],
        "combine": [attending.combine_signature(bfloat16_gate=gate, bfloat16_out=out) for gate, out in two],
        "rms_norm": [norming.signature(bfloat16_added=added, bfloat16_out=out) for added, out in two],
        "rope": [roping.signature(bfloat16_in=a, bfloat16_query=b, bfloat16_rows=c) for a, b, c in three],
        "product": [gating.signature(bfloat16_gate=a, bfloat16_in=b, bfloat16_out=c) for a, b, c in three],
        "decode": [decoding.signature(bfloat16=narrow) for narrow in yes_no],
        "recurrent": [recurring.signature()],
    }
    return {name: {signature.args for signature in signatures} for name, signatures in made.items()}


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    noted = Launches()
    for module in (fused, products, cuda_delta):
        monkeypatch.setattr(module, "launch", noted.launch)
    assert not shim.SIMULATED
    return noted


def warmed(launches: Launches, quant: GgmlType, ends: GgmlType) -> LayeredModel:
    """A hybrid with every path of the warm-up run."""
    made = opened(tiny(SHAPES["27B"]), quant, ends)
    spec, options = LoadSpec("safetensors", (), 256), EngineOptions(Kernels.CUDA, launches)
    model = load_layered(spec, made, torch.device("cpu"), Team(1), lambda stage, done: None, options=options)
    assert isinstance(model, LayeredModel)
    return model


@pytest.mark.parametrize("kinds", KINDS, ids=lambda kinds: f"{kinds[0].name}-{kinds[1].name}")
def test_launches_are_of_the_types_that_are_assembled(kinds: tuple[GgmlType, GgmlType], launches: Launches) -> None:
    model, known = warmed(launches, *kinds), assembled_types()
    names = {one.function.__name__ for one in launches.all}
    blocks = {"multiply", "expand"} if kinds[0] is GgmlType.Q4_K else set()
    assert names == set(known) - ({"multiply", "expand"} - blocks)
    for one in launches.all:
        assert one.types in known[one.function.__name__], (one.function.__name__, one.types)
        assert one.block % shim.WARP == 0
        assert one.block <= 1024
        assert 0 < one.grid[0] <= MOST_BLOCKS
        assert all(0 < size <= MOST_ACROSS for size in one.grid[1:])
    model.close()


@pytest.mark.parametrize("kinds", KINDS, ids=lambda kinds: f"{kinds[0].name}-{kinds[1].name}")
def test_a_recording_compiles_nothing_and_waits_for_nothing(
    kinds: tuple[GgmlType, GgmlType], launches: Launches
) -> None:
    """A first launch loads code, which a stream that is being captured does not allow."""
    model = warmed(launches, *kinds)
    assert launches.recording
    assert "not recorded" not in model.summary
    before = {one.compiled for one in launches.all[: launches.recording[0]]}
    assert {launches.all[index].compiled for index in launches.recording} <= before
    model.close()


def test_after_the_warm_up_nothing_is_compiled(launches: Launches) -> None:
    """Prompts of any length, single tokens with and without logits, a second sequence: all was launched before."""
    model = warmed(launches, GgmlType.Q4_K, GgmlType.Q6_K)
    known = {one.compiled for one in launches.all}
    row, position = np.zeros(model.vocab_size, dtype=np.float32), 0
    for count in (2, 3, 7, 1, 8, 12, 1, 2, 61, 64, 65, 1):
        wanted = row if count % 2 else None
        model.forward(0, np.zeros(count, dtype=np.int32), position, wanted)
        position += count
    for position in range(4):
        model.forward(1, np.zeros(1, dtype=np.int32), position, row)
    late = {one.compiled for one in launches.all} - known
    assert not late, [(name.__name__, block) for name, block, _ in late]
    model.close()
