"""Readers of weight files and model configs: numpy only, strict, safe on hostile files. The daemon may import this."""
