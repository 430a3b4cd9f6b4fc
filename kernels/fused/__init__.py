"""What a GPU does between the products of a decode step: `launch` for callers, a package for each operation.

Each has a `naive` reference in float64 and a `cuda` kernel. Positions are read from device memory, so that a CUDA
graph of a step can be replayed for any of them.
"""
