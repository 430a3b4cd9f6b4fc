"""The way from torch tensors to a launch, with a stand-in for numba.cuda: streams, descriptions, bounds."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from neuron.kernels import cuda as shim


class FakeNumba:
    """Records launches. A dispatcher is its `launch_bounds`; indexing gives the launch."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []
        self.streams: list[int] = []
        self.described: list[dict[str, Any]] = []
        self.compiled: list[Any] = []

    def external_stream(self, handle: int) -> object:
        self.streams.append(handle)
        return ("stream", handle)

    def from_cuda_array_interface(self, interface: dict[str, Any], owner: object, sync: bool) -> object:
        assert owner is None
        assert not sync
        self.described.append(interface)
        return ("array", interface["pointer"], interface["type"])

    def jit(self, function: object, launch_bounds: Any, lto: bool) -> Any:
        # The tests assemble PTX: what runs must come from it too.
        assert not lto
        self.compiled.append(launch_bounds)
        fake = self

        class Dispatcher:
            def __getitem__(self, configuration: tuple[Any, ...]) -> Any:
                return lambda *arguments: fake.launches.append((launch_bounds, configuration, arguments))

        return Dispatcher()


@pytest.fixture
def numba(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNumba]:
    fake = FakeNumba()
    monkeypatch.setattr(shim, "cuda", fake)
    monkeypatch.setattr(shim, "SIMULATED", False)
    monkeypatch.setattr(shim, "_described", {})
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=77))
    described = property(lambda self: {"pointer": self.data_ptr(), "type": self.dtype})
    monkeypatch.setattr(torch.Tensor, "__cuda_array_interface__", described)
    shim._stream.cache_clear()
    yield fake
    shim._stream.cache_clear()


def function(*arguments: object) -> None:
    pass


def test_a_launch_goes_to_the_current_stream_with_bits_and_float32(numba: FakeNumba) -> None:
    compiled = shim.kernel(function)
    x = torch.zeros(4, dtype=torch.bfloat16)
    shim.launch(compiled, (3,), 128, (x, 0.5, True, 7))
    bound, configuration, arguments = numba.launches[0]
    assert (bound, configuration) == (128, ((3,), 128, ("stream", 77)))
    assert arguments[0] == ("array", x.data_ptr(), torch.int16)
    assert isinstance(arguments[1], np.float32)
    assert arguments[2:] == (True, 7)


def test_what_is_known_is_not_made_again(numba: FakeNumba) -> None:
    """A replayed shape costs no description, no stream and no compilation."""
    compiled = shim.kernel(function)
    x, y = torch.zeros(4, 4), torch.zeros(4, 4)
    for _ in range(3):
        shim.launch(compiled, (1,), 64, (x, y))
    shim.launch(compiled, (1,), 32, (x[:2], y.T))
    assert len(numba.described) == 4
    assert numba.streams == [77]
    assert numba.compiled == [64, 32]


def test_a_kernel_may_ask_for_room_for_its_blocks(numba: FakeNumba) -> None:
    shim.launch(shim.kernel(function, 1), (1,), 512, (0.5,))
    assert numba.compiled == [(512, 1)]


def test_descriptions_are_bounded_and_keep_no_memory(numba: FakeNumba, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shim, "_MOST_DESCRIBED", 3)
    compiled = shim.kernel(function)
    kept = [torch.zeros(size) for size in range(1, 9)]
    for x in kept:
        shim.launch(compiled, (1,), 32, (x,))
    assert len(shim._described) <= 3
