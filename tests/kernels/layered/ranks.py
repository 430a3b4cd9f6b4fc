"""Models of the layered engine for tests: alone, or as ranks that are threads of this process."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from neuron.kernels.engine import LoadSpec
from neuron.kernels.layered.load import EngineOptions, load_layered
from neuron.kernels.layered.model import LayeredModel, SeeingLayeredModel
from neuron.kernels.load import load_model
from neuron.kernels.opened import open_model
from neuron.kernels.threads import Team
from tests.kernels.decoder.tiny import Floats

T = TypeVar("T")
WAIT_SECONDS = 60.0


class ThreadRanks:
    """What threads that are ranks share: a barrier, and a place for each one's tensor."""

    def __init__(self, ranks: int) -> None:
        self.barrier = threading.Barrier(ranks, timeout=WAIT_SECONDS)
        self.tensors: list[torch.Tensor] = [torch.empty(0)] * ranks
        self.calls: list[list[tuple[str, tuple[int, ...]]]] = [[] for _ in range(ranks)]


class ThreadGroup:
    """Implements kernels.engine.Collectives for one thread."""

    def __init__(self, shared: ThreadRanks, rank: int) -> None:
        self.rank, self.world_size = rank, len(shared.tensors)
        self._shared = shared

    def begin(self) -> None:
        self._shared.calls[self.rank].append(("begin", ()))

    def all_reduce(self, tensor: torch.Tensor) -> None:
        assert tensor.is_contiguous()
        assert tensor.dtype is torch.float32
        parts = self._exchange("all_reduce", tensor.clone())
        tensor.copy_(torch.stack(parts).sum(0))

    def gather_columns(self, tensor: torch.Tensor) -> torch.Tensor | None:
        parts = self._exchange("gather", tensor)
        assert len({part.shape for part in parts}) == 1
        return torch.cat(parts, dim=1) if self.rank == 0 else None

    def _exchange(self, call: str, tensor: torch.Tensor) -> list[torch.Tensor]:
        self._shared.calls[self.rank].append((call, tuple(tensor.shape)))
        self._shared.tensors[self.rank] = tensor
        self._shared.barrier.wait()
        parts = list(self._shared.tensors)
        self._shared.barrier.wait()
        return parts


class RankedModel:
    """The ranks of one model, driven in step: a call goes to all of them, the answer is the first one's."""

    def __init__(self, folder: Path, ranks: int, quant: str | None = "f32", **changes: Any) -> None:
        self.shared = ThreadRanks(ranks)
        self._pool = ThreadPoolExecutor(ranks)
        self.ranks: list[LayeredModel] = self._all(
            lambda rank: load(folder, quant, rank=rank, group=ThreadGroup(self.shared, rank), **changes)
        )
        self.vocab_size = self.ranks[0].vocab_size

    def forward(self, sequence: int, tokens: Any, position: int, logits: Floats | None) -> None:
        self.call("forward", sequence, tokens, position, logits)

    def call(self, name: str, *arguments: Any) -> Any:
        """`name` of every rank; other ranks than the first get logits of their own, which they must leave alone."""

        def one(rank: int) -> Any:
            if rank == 0:
                return getattr(self.ranks[0], name)(*arguments)
            own = [np.full_like(given, 7.0) if _is_row(given) else given for given in arguments]
            found = getattr(self.ranks[rank], name)(*own)
            for mine, given in zip(own, arguments, strict=True):
                if mine is not given:
                    assert (mine == 7.0).all()
            return found

        found = self._all(one)
        assert all(result == found[0] for result in found)
        return found[0]

    def clear(self, sequence: int, keep: int = 0) -> int:
        return int(self.call("clear", sequence, keep))

    def encode_image(self, *arguments: Any) -> int:
        return int(self.call("encode_image", *arguments))

    def forward_with_images(self, *arguments: Any) -> None:
        self.call("forward_with_images", *arguments)

    @property
    def held_images(self) -> int:
        found = {model.held_images for model in self.ranks if isinstance(model, SeeingLayeredModel)}
        assert len(found) == 1
        return found.pop()

    def close(self) -> None:
        self.call("close")
        self._pool.shutdown()
        assert all(calls == self.shared.calls[0] for calls in self.shared.calls)

    def _all(self, run: Callable[[int], T]) -> list[T]:
        futures = [self._pool.submit(self._guarded, run, rank) for rank in range(len(self.shared.tensors))]
        return [future.result() for future in futures]

    def _guarded(self, run: Callable[[int], T], rank: int) -> T:
        try:
            return run(rank)
        except ValueError:
            raise  # every rank refuses alike
        except BaseException:
            self.shared.barrier.abort()
            raise


def _is_row(argument: Any) -> bool:
    return isinstance(argument, np.ndarray) and argument.dtype == np.float32


def spec_of(folder: Path, quant: str | None, max_context: int, rank: int = 0, ranks: int = 1) -> LoadSpec:
    gguf = sorted(folder.glob("*.gguf"))
    if gguf:
        return LoadSpec("gguf", tuple(gguf), max_context, None, quant, rank, ranks)
    files = tuple(sorted(folder.glob("*.safetensors")))
    return LoadSpec("safetensors", files, max_context, folder / "config.json", quant, rank, ranks)


def load(
    folder: Path,
    quant: str | None = "f32",
    *,
    max_context: int = 1024,
    threads: int = 1,
    rank: int = 0,
    group: ThreadGroup | None = None,
    options: EngineOptions | None = None,
) -> LayeredModel:
    """The layered engine on this CPU, also where a single one would get the compiled engine."""
    spec = spec_of(folder, quant, max_context, rank, 1 if group is None else group.world_size)
    if group is not None and options is None:
        model = load_model(spec, "cpu", lambda stage, fraction: None, threads=threads, group=group)
    else:
        team = Team(threads)
        torch.set_num_threads(threads)
        opened = open_model(spec, team)
        chosen = options or EngineOptions()
        model = load_layered(spec, opened, torch.device("cpu"), team, lambda stage, done: None, group, chosen)
    assert isinstance(model, LayeredModel)
    return model


def relative(found: Floats, wanted: Floats) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
