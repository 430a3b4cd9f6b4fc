"""The CUDA kernels of products on blocks and of the decode step, at the widths of the published models."""

from functools import partial

from neuron.kernels.formats.ggml_types import GgmlType
from tests.kernels.cuda.ptx import Build

SOURCES = ("quant/cuda", "fused", "gdn/gating", "formats/ggml_types.py")


def builds() -> dict[str, Build]:
    return _products() | _fused()


def _products() -> dict[str, Build]:
    from neuron.kernels.quant.cuda import expand, matvec
    from neuron.kernels.quant.cuda.unpack import BLOCK_KINDS, layout

    found = {}
    for kind in BLOCK_KINDS:
        block = layout(kind)
        # One of each way of storing for what all types share.
        shared = kind in (GgmlType.Q4_0, GgmlType.Q4_K, GgmlType.Q6_K)
        for rows, batch, threads in ((4, 1, 128), (1, 8, 64)) if shared else ((4, 1, 128),):
            make = partial(matvec.make, block, rows, batch, threads, bfloat16_in=True, bfloat16_out=False)
            typed = partial(matvec.signature, block, bfloat16_in=True, bfloat16_out=False)
            found[f"product {kind.name} {rows}x{batch}"] = Build(make, typed, threads)
        if shared:
            make = partial(expand.make, block, bfloat16=True, chosen=False)
            found[f"numbers {kind.name}"] = Build(make, partial(expand.signature, block, bfloat16=True), expand.THREADS)
    return found


def _fused() -> dict[str, Build]:
    from neuron.kernels.fused.attend import cuda as attend
    from neuron.kernels.fused.gate import cuda as gate
    from neuron.kernels.fused.rms_norm import cuda as rms_norm
    from neuron.kernels.fused.rope import cuda as rope

    found = {}
    for dim, group in ((64, 3), (128, 4), (256, 4), (256, 6)):
        plan = attend.plan(dim, group)
        assert plan is not None
        types = {"bfloat16_query": False, "bfloat16_rows": True}
        make, typed = partial(attend.make, plan, **types), partial(attend.signature, **types)
        found[f"attend {dim}x{group}"] = Build(make, typed, plan.threads)
    types = {"bfloat16_gate": False, "bfloat16_out": True}
    make, typed = partial(attend.make_combine, 256, gated=True, **types), partial(attend.combine_signature, **types)
    found["combine"] = Build(make, typed, 256)
    types = {"bfloat16_in": False, "bfloat16_query": False, "bfloat16_rows": True}
    make = partial(rope.make, 256, normed=True, adjacent=False, **types)
    found["rope"] = Build(make, partial(rope.signature, **types), rope.threads_of(256))
    types = {"bfloat16_added": False, "bfloat16_out": True}
    make, typed = partial(rms_norm.make, added=True, **types), partial(rms_norm.signature, **types)
    found["rms_norm"] = Build(make, typed, rms_norm.THREADS)
    types = {"bfloat16_gate": False, "bfloat16_in": False, "bfloat16_out": True}
    found["gate"] = Build(partial(gate.make, silu=True, **types), partial(gate.signature, **types), gate.THREADS)
    return found
