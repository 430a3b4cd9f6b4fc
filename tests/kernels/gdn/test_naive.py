"""The references themselves: against transformers' own code, and against what they must not be."""

import numpy as np
import torch
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule, torch_recurrent_gated_delta_rule

from neuron.kernels.gdn.chunk.naive import chunked
from neuron.kernels.gdn.gating.naive import softplus
from neuron.kernels.gdn.recurrent.naive import l2_normalised, recurrent
from tests.kernels.gdn import inputs


def test_the_rule_is_that_of_transformers() -> None:
    made = inputs.rule(70)
    tensors = [torch.from_numpy(value)[None].float() for value in (made.q, made.k, made.v, made.g, made.beta)]
    for function in (torch_chunk_gated_delta_rule, torch_recurrent_gated_delta_rule):
        out, state = function(
            *tensors, initial_state=torch.from_numpy(made.state)[None].float(), output_final_state=True
        )
        wanted, after = recurrent(*made.arguments())
        np.testing.assert_allclose(out[0], wanted, atol=1e-5)
        np.testing.assert_allclose(state[0], after, atol=1e-5)


def test_chunks_of_any_size_are_the_recurrence() -> None:
    made = inputs.rule(23)
    wanted, after = recurrent(*made.arguments())
    for chunk in (1, 5, 23, 64):
        found, state = chunked(*made.arguments(), chunk=chunk)
        np.testing.assert_allclose(found, wanted, atol=1e-12)
        np.testing.assert_allclose(state, after, atol=1e-12)


def test_the_epsilon_of_the_norm_is_inside_the_root() -> None:
    small = np.full((1, 4), 1e-4)
    np.testing.assert_allclose(l2_normalised(small), 1e-4 / np.sqrt(4e-8 + 1e-6))


def test_softplus_is_linear_far_out_and_never_overflows() -> None:
    x = np.array([-1000.0, -5.0, 0.0, 5.0, 20.0, 21.0, 1000.0])
    with np.errstate(over="raise"):
        found = softplus(x)
    np.testing.assert_allclose(found[1:5], np.logaddexp(0, x[1:5]))
    np.testing.assert_array_equal(found[5:], x[5:])
