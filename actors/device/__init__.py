"""The device actor (daemon side), the jobs it sends, and the worker (device process side)."""
