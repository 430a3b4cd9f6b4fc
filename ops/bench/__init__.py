"""Benchmarks of the numerics against peers on the same weights in the same run: `python -m ops.bench`."""
