"""neuron: a daemon that owns the accelerators of one host and serves language models on them."""

__version__ = "0.1.0"
