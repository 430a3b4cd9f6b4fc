"""Weights in a device process's own memory: matrices as stored, names of both formats, the strict loader."""
