"""Transformers: the same weights in the library that the tests take for their oracle, in bfloat16, in this process."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from ops.bench.engine import Logits


class Transformers:
    """`folder` holds config.json and safetensors."""

    def __init__(self, folder: Path, threads: int) -> None:
        torch.set_num_threads(threads)
        self.name = "transformers"
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        self._held: Any = None
        self._logits: Logits = np.zeros(0, dtype=np.float32)

    def prefill(self, tokens: Sequence[int]) -> float:
        self._held = None
        return self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> float:
        start = time.perf_counter()
        with torch.inference_mode():
            found = self._model(
                input_ids=torch.tensor([list(tokens)]), cache=self._held, use_cache=True, logits_to_keep=1
            )
        self._held = found.cache
        self._logits = found.logits[0, -1].float().numpy()
        return time.perf_counter() - start

    def decode(self, tokens: Sequence[int]) -> list[float]:
        return [self.extend([token]) for token in tokens]

    def logits(self) -> Logits:
        return self._logits

    def close(self) -> None:
        self._held = self._model = None
