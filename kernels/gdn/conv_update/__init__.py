"""The causal convolution of one new token per sequence, over the inputs kept in a ring."""
