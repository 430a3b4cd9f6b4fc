"""Norm and rotation of query and key heads, and the write of keys and values into the cache."""
