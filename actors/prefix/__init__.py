"""Prompt reuse: where prompts are cut, what is kept of them, and how a prefill goes back to it."""
