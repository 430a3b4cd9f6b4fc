"""The CUDA kernels of products on blocks and of the decode step, at the widths of the published models."""

from functools import partial

from tests.kernels.cuda.ptx import CAPABILITIES, Build

SOURCES = ("quant/cuda", "fused", "gdn/gating", "formats/ggml_types.py")


Capabilities = tuple[tuple[int, int], ...]


def builds() -> dict[str, Build]:
    return _products() | _fused()


#: What the engine launches less often is assembled for one capability.
RARE = ((9, 0),)


def _products() -> dict[str, Build]:
    from neuron.kernels.quant.cuda import expand, matvec
    from neuron.kernels.quant.cuda.unpack import BLOCK_KINDS, Layout, layout

    found = {}

    def product(block: Layout, rows: int, batch: int, threads: int, capabilities: Capabilities, narrow: bool) -> None:
        make = partial(matvec.make, block, rows, batch, threads, bfloat16_in=narrow, bfloat16_out=False)
        typed = partial(matvec.signature, block, bfloat16_in=narrow, bfloat16_out=False)
        name = f"product {block.kind.name} {rows}x{batch}{'' if narrow else ' of float32'}"
        found[name] = Build(make, typed, threads, capabilities)

    for kind in BLOCK_KINDS:
        block = layout(kind)
        product(block, 4, 1, 128, CAPABILITIES, True)
        product(block, 1, 8, 64, CAPABILITIES, True)
        product(block, 4, 2, 128, RARE, True)
        product(block, 4, 1, 128, RARE, False)
        product(block, 1, 8, 64, RARE, False)
        for name, chosen, capabilities in (("numbers", False, CAPABILITIES), ("embeddings", True, RARE)):
            make = partial(expand.make, block, bfloat16=not chosen, chosen=chosen)
            typed = partial(expand.signature, block, bfloat16=not chosen)
            found[f"{name} {kind.name}"] = Build(make, typed, expand.THREADS, capabilities)
    return found


def _fused() -> dict[str, Build]:
    """In the types of a bfloat16 model, and (for one capability) of a float32 one."""
    from neuron.kernels.fused.attend import cuda as attend
    from neuron.kernels.fused.gate import cuda as gate
    from neuron.kernels.fused.rms_norm import cuda as rms_norm
    from neuron.kernels.fused.rope import cuda as rope

    found = {}
    for narrow, where, suffix in ((True, CAPABILITIES, ""), (False, RARE, " in float32")):
        for dim, group in ((64, 3), (128, 4), (256, 4), (256, 6)) if narrow else ((128, 4), (256, 6)):
            plan = attend.plan(dim, group)
            assert plan is not None
            types = {"bfloat16_query": narrow, "bfloat16_rows": narrow}
            make, typed = partial(attend.make, plan, **types), partial(attend.signature, **types)
            found[f"attend {dim}x{group}{suffix}"] = Build(make, typed, plan.threads, where)
        types = {"bfloat16_gate": False, "bfloat16_out": narrow}
        make, typed = partial(attend.make_combine, 256, gated=True, **types), partial(attend.combine_signature, **types)
        found[f"combine{suffix}"] = Build(make, typed, 256, where)
        types = {"bfloat16_in": False, "bfloat16_query": narrow, "bfloat16_rows": narrow}
        make = partial(rope.make, 256, normed=True, adjacent=not narrow, **types)
        found[f"rope{suffix}"] = Build(make, partial(rope.signature, **types), rope.threads_of(256), where)
        types = {"bfloat16_added": False, "bfloat16_out": narrow}
        make, typed = partial(rms_norm.make, added=narrow, **types), partial(rms_norm.signature, **types)
        found[f"rms_norm{suffix}"] = Build(make, typed, rms_norm.THREADS, where)
        types = {"bfloat16_gate": False, "bfloat16_in": False, "bfloat16_out": narrow}
        make, typed = partial(gate.make, silu=narrow, **types), partial(gate.signature, **types)
        found[f"gate{suffix}"] = Build(make, typed, gate.THREADS, where)
    return found
