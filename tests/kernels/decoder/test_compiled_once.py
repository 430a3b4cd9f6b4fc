"""Whatever kind of array the tokens come in, the code that the warm-up compiled is the code that runs."""

import numpy as np

from neuron.kernels.decoder import elementwise
from neuron.kernels.decoder.step import run_step
from neuron.kernels.load import build_model, warm_up
from neuron.kernels.threads import Team
from neuron.kernels.warm import tiny_model_config, tiny_weights


def test_tokens_of_a_message_need_no_code_of_their_own() -> None:
    config = tiny_model_config()
    model = build_model(config, tiny_weights(config), Team(1), 64)
    warm_up(model)
    before = len(run_step.overloads), len(elementwise.embed.overloads)
    logits = np.empty(model.vocab_size, dtype=np.float32)
    for count in (1, 3, 40):
        message = np.zeros(count, dtype="<i4").tobytes()
        model.forward(0, np.frombuffer(message, dtype="<i4"), 0, logits)
        model.clear(0)
    assert (len(run_step.overloads), len(elementwise.embed.overloads)) == before
    model.close()
