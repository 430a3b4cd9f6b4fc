"""Numerics: weight readers, quantisation, attention, Gated DeltaNet, the architectures built from them.

Knows nothing about processes or HTTP. Only a device process imports it, except `kernels.formats`
(plain numpy readers of weight files and configs), which the daemon reads too.
"""
