"""Softmax attention: rope, the KV cache of a sequence, attention for single steps and for prefill."""
