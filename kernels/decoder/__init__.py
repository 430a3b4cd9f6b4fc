"""The decoder-only transformer: a compiled step for few tokens, library matrix products for prefill."""
