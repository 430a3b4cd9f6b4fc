"""The engine that runs a model layer by layer in torch, on any device: CUDA, and the ranks of a tensor-parallel group.

A single CPU device runs the compiled engine (kernels.decoder) instead; weights, formats and arithmetic are shared.
"""
