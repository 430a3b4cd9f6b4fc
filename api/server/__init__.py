"""The HTTP/1.1 listener: Hypercorn's connection machinery with limits, and nothing but HTTP/1.1."""
