"""CUDA products of matrices in GGML blocks: `products` launches, `unpack` reads blocks, the rest are kernels."""
