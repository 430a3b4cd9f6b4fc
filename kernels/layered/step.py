"""DecodeStep: one token through the whole stack between static buffers, so that it can be replayed for any position."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from neuron.kernels.layered.graph import GraphedStep, Recorder
from neuron.kernels.layered.span import Span

RunStep = Callable[[torch.Tensor, Span], torch.Tensor | None]
"""(token int64 [1], span) -> logits [1, vocabulary or more], None on ranks but the first."""
_WORDS = 2


class DecodeStep:
    """Token, position and the cosines and sines of the rotation reach the device in one copy.

    The host must have waited for a step before the next one: `inputs` are written over.
    """

    def __init__(self, half: int, device: torch.device, run: RunStep, recorder: Recorder | None) -> None:
        """`half`: rotary_dim / 2."""
        size = 8 * _WORDS + 8 * half
        self._inputs = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._on_device = torch.zeros(size, dtype=torch.uint8, device=device)
        held = self._inputs.numpy()
        self._words: npt.NDArray[np.int64] = held[: 8 * _WORDS].view(np.int64)
        #: float32 [1, 2, half], to be filled before `run`.
        self.rope: npt.NDArray[np.float32] = held[8 * _WORDS :].view(np.float32).reshape(1, 2, half)
        words = self._on_device[: 8 * _WORDS].view(torch.int64)
        rope = self._on_device[8 * _WORDS :].view(torch.float32).view(1, 2, half)
        span = Span(0, 1, words[1:], rope, replayed=True)

        self.logits: torch.Tensor | None = None

        def work() -> None:
            self.logits = run(words[:1], span)

        self.graphed = GraphedStep(work, recorder)

    def run(self, token: int, position: int) -> torch.Tensor | None:
        """Logits [1, ...] on the device, valid until the next step."""
        self._words[0], self._words[1] = token, position
        self._on_device.copy_(self._inputs, non_blocking=True)
        self.graphed.run()
        return self.logits
