"""CUDA products of matrices that stay in GGML blocks: `products` launches, `unpack` reads blocks, the rest are kernels."""
