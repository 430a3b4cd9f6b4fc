"""`python -m ops.gpu_check`: what a GPU does with our kernels and models, as one JSON report in under eight minutes."""
