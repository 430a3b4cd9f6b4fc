"""Reference of the products with an activation. For tests."""

import numpy as np

from neuron.kernels.fused.rms_norm.naive import Array


def sigmoid(x: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-x))
    return result


def silu_product(gate: Array, up: Array) -> Array:
    """silu(gate) * up."""
    return gate * sigmoid(gate) * up


def sigmoid_product(gate: Array, x: Array) -> Array:
    """sigmoid(gate) * x."""
    return sigmoid(gate) * x
