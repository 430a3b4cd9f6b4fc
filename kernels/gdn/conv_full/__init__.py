"""The causal convolution of many tokens of one sequence."""
