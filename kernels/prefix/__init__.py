"""Kept prefixes: copies of KV rows and recurrent states in host memory, from which a sequence can be put together."""
