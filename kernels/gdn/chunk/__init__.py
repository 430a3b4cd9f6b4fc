"""The gated delta rule in chunks of 64 tokens: long prompts by matrix products."""
