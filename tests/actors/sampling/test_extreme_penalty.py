"""The smallest penalty that a request may name still leaves finite logits."""

import numpy as np
import pytest

from neuron.actors.request import SamplingParams
from neuron.actors.sampling.params import resolve_sampling
from neuron.actors.sampling.sampler import Sampler


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("penalty", [5e-324, 1e-40, 1e-7])
def test_a_tiny_repetition_penalty_samples(temperature: float, penalty: float) -> None:
    params = resolve_sampling(SamplingParams(temperature=temperature, repetition_penalty=penalty), SamplingParams())
    sampler = Sampler(params, vocab_size=64, prompt=[1, 2, 3])
    row = np.linspace(-30, 30, 64, dtype=np.float32)
    for _ in range(4):
        sampled = sampler.sample(row)
        assert 0 <= sampled.token_id < 64
        sampler.accept(sampled.token_id)
