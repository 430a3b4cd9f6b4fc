"""How exact an engine is: KL divergence of its next-token distributions from a float32 evaluation of the same file."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ops.bench.engine import Engine, Logits


@dataclass(frozen=True, slots=True)
class Case:
    """`prompt` is run at once, `answer` one by one."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def collect(engine: Engine, cases: Sequence[Case]) -> list[Logits]:
    """Logits after each prompt and after each token of its answer."""
    found = []
    for case in cases:
        engine.prefill(case.prompt)
        found.append(engine.logits())
        for token in case.answer:
            engine.decode([token])
            found.append(engine.logits())
    return found


def divergence(reference: Logits, other: Logits) -> float:
    """KL(reference || other) in nats, in float64."""
    p, q = _log_probabilities(reference), _log_probabilities(other)
    return float(np.sum(np.exp(p) * (p - q)))


def mean_divergence(reference: Sequence[Logits], other: Sequence[Logits]) -> float:
    return float(np.mean([divergence(a, b) for a, b in zip(reference, other, strict=True)]))


def _log_probabilities(logits: Logits) -> npt.NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max()
    found: npt.NDArray[np.float64] = wide - np.log(np.exp(wide).sum())
    return found
