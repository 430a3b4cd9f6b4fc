"""Quantised linears on the CPU: vector code over GGML blocks, dequantisation, matrix products."""
