"""CUDA kernel of silu(gate) * up and sigmoid(gate) * x, a thread for each number."""
# mypy: allow-untyped-defs, allow-untyped-decorators

from collections.abc import Callable
from typing import Any

from neuron.kernels.cuda import F32, I16, cuda, narrow, plain, types, widen
from neuron.kernels.gdn.gating.cuda import sigmoid

THREADS = 128


def make(*, silu: bool, bfloat16_gate: bool, bfloat16_in: bool, bfloat16_out: bool) -> Callable[..., None]:
    """A kernel on grid (ceil(elements / THREADS))."""
    load_gate, load, store = (
        (widen if bfloat16_gate else plain),
        (widen if bfloat16_in else plain),
        (narrow if bfloat16_out else plain),
    )

    def product(gate, x, out):
        """out [elements] of gate and x [elements]."""
        place = cuda.grid(1)
        if place >= out.shape[0]:
            return
        value = load_gate(gate[place])
        factor = sigmoid(value)
        if silu:
            factor *= value
        out[place] = store(factor * load(x[place]))

    return product


def signature(*, bfloat16_gate: bool, bfloat16_in: bool, bfloat16_out: bool) -> Any:
    gate, x, out = ((I16 if narrow else F32) for narrow in (bfloat16_gate, bfloat16_in, bfloat16_out))
    return types.void(gate[::1], x[::1], out[::1])
