"""The CUDA kernels of Gated DeltaNet, as tests.kernels.cuda.ptx compiles and assembles them."""

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.kernels.cuda.ptx import Build

SOURCES = ("gdn",)


def builds() -> dict[str, Build]:
    """At the widths of the published models."""
    from neuron.kernels.gdn.chunk import cuda as chunk
    from neuron.kernels.gdn.conv_full import cuda as conv_full
    from neuron.kernels.gdn.conv_update import cuda as conv_update
    from neuron.kernels.gdn.decode import cuda as decode
    from neuron.kernels.gdn.gating import cuda as gating
    from neuron.kernels.gdn.recurrent import cuda as recurrent

    def as_is(function: Any) -> Callable[[], Any]:
        return lambda: function

    found: dict[str, Build] = {
        "gating": Build(as_is(gating.gating), gating.signature, gating.THREADS),
        "conv_update": Build(as_is(conv_update.conv_update), conv_update.signature, conv_update.THREADS),
        "conv_full": Build(as_is(conv_full.conv_full), conv_full.signature, conv_full.THREADS),
        "remember": Build(as_is(conv_full.remember), conv_full.remember_signature, conv_full.THREADS),
        "recurrent": Build(partial(recurrent.make, 128, 32, 4), recurrent.signature, 128),
        "chunk prepare": Build(
            partial(chunk.make_prepare, 128, 64, 16), chunk.prepare_signature, chunk.PREPARE_THREADS
        ),
        "chunk scan": Build(partial(chunk.make_scan, 128, 64, 32), chunk.scan_signature, 32 * chunk.SCAN_GROUPS),
    }
    for bfloat16 in (False, True):
        name = f"decode {'bfloat16' if bfloat16 else 'float32'}"
        make = partial(decode.make, 128, 128, 4, bfloat16=bfloat16)
        found[name] = Build(make, partial(decode.signature, bfloat16=bfloat16), 512, blocks=decode.BLOCKS)
    return found
