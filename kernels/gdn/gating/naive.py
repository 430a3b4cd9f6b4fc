"""Reference of the gates. For tests."""

import numpy as np

from neuron.kernels.gdn.recurrent.naive import Array

#: softplus(x) is x itself above this, where exp(x) would overflow (the threshold that torch uses).
SOFTPLUS_LINEAR = 20.0


def softplus(x: Array) -> Array:
    return np.where(x > SOFTPLUS_LINEAR, x, np.log1p(np.exp(np.minimum(x, SOFTPLUS_LINEAR))))


def gating(a: Array, b: Array, decay: Array, dt_bias: Array) -> tuple[Array, Array]:
    """Log decay g = decay * softplus(a + dt_bias) and beta = sigmoid(b), both [T, Hv].

    a, b [T, Hv]; decay = -exp(A_log) [Hv]; dt_bias [Hv].
    """
    return decay * softplus(a + dt_bias), 0.5 + 0.5 * np.tanh(0.5 * b)
