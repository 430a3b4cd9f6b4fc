"""The gated delta rule token by token: decode, and prompts below one chunk."""
