"""Gated DeltaNet: five operations, each with a plain reference, a CPU form and a CUDA kernel, and the layer of them.

Shapes everywhere: key heads Hk, value heads Hv = Hk * ratio, key width K, value width V, channels C = 2 Hk K + Hv V.
Value heads are in grouped order: head h belongs to key head h // ratio.
"""
