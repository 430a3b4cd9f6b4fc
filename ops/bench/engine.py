"""Engine: what the bench asks of us and of a peer alike, and our own side of it."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from neuron.kernels.engine import LoadSpec
from neuron.kernels.load import load_model

Logits = npt.NDArray[np.float32]


class Engine(Protocol):
    name: str

    def prefill(self, tokens: Sequence[int]) -> float:
        """Forget everything, run `tokens` at once; seconds until the last position's logits are there."""

    def extend(self, tokens: Sequence[int]) -> float:
        """Run `tokens` at once after what is held; seconds until the last position's logits are there."""

    def decode(self, tokens: Sequence[int]) -> list[float]:
        """Run `tokens` one by one after what is held; seconds of each."""

    def logits(self) -> Logits:
        """float32 [vocab] of the last token that was run."""

    def close(self) -> None: ...


class Neuron:
    """Our model in this process."""

    def __init__(self, path: Path, context: int, threads: int | None, quant: str | None = None) -> None:
        self.name = "neuron" if quant is None else f"neuron {quant}"
        spec = LoadSpec("gguf", (path,), context, quant=quant)
        self._model = load_model(spec, "cpu", lambda stage, fraction: None, threads=threads)
        self._logits = np.zeros(self._model.vocab_size, dtype=np.float32)
        self._held = 0

    def prefill(self, tokens: Sequence[int]) -> float:
        self._model.clear(0)
        self._held = 0
        return self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> float:
        ids = np.array(tokens, dtype=np.int32)
        start = time.perf_counter()
        self._model.forward(0, ids, self._held, self._logits)
        self._held += len(tokens)
        return time.perf_counter() - start

    def decode(self, tokens: Sequence[int]) -> list[float]:
        return [self.extend([token]) for token in tokens]

    def logits(self) -> Logits:
        return self._logits.copy()

    def close(self) -> None:
        self._model.close()
