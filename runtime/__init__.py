"""The actor runtime: mailboxes, processes, links, shared memory, supervision, logging, lifecycle.

Knows nothing about language models or HTTP.
"""
