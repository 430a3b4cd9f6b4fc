"""Tensor-parallel groups: several device processes that hold one model together and live and die together."""
