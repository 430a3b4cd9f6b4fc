"""Stage `gdn`: kernels of Gated DeltaNet at one layer of the 27B, beside flash-linear-attention's where it is there."""

import importlib.util
from typing import Any

import torch

from neuron.kernels.cuda import kernel, launch
from neuron.kernels.gdn.chunk import cuda as chunk
from neuron.kernels.gdn.chunk.tensors import chunked
from neuron.kernels.gdn.decode import cuda as decode
from neuron.kernels.gdn.recurrent import cuda as recurrent
from ops.gpu_check.context import Context
from ops.gpu_check.report import StageResult

_CHUNK, _KERNEL = 64, 4


class Layer:
    """q, k [n, Hk, K] normalised, v [n, Hv, V], g, beta [n, Hv], state [Hv, K, V]: float32, random."""

    def __init__(self, context: Context, tokens: int) -> None:
        self.keys, self.heads, self.width = (1, 2, 32) if context.small else (16, 48, 128)
        device = context.device
        self.q, self.k = (
            torch.nn.functional.normalize(torch.randn(tokens, self.keys, self.width, device=device), dim=-1)
            for _ in range(2)
        )
        self.v = torch.randn(tokens, self.heads, self.width, device=device)
        self.g = -torch.rand(tokens, self.heads, device=device) * 0.1
        self.beta = torch.rand(tokens, self.heads, device=device)
        self.state = torch.zeros(self.heads, self.width, self.width, device=device)
        self.out = torch.empty_like(self.v)


def run(context: Context, result: StageResult) -> None:
    tokens = 4 if context.small else 4096
    with torch.inference_mode():
        _decode(context, result)
        layer = Layer(context, tokens)
        _recurrent(context, result, layer)
        if not context.small:
            _chunk(context, result, layer)
        _tensors(context, result, Layer(context, _CHUNK if context.small else tokens))
        if importlib.util.find_spec("fla") is None or not context.cuda:
            result.missing("flash-linear-attention is not installed (or no GPU): GDN kernels are compared with nothing")
            return
        try:
            _fla(context, result, layer)
        except Exception as error:
            result.missing(f"flash-linear-attention does not run here: {type(error).__name__}: {error}")


def _decode(context: Context, result: StageResult) -> None:
    layer, device, dtype = Layer(context, 1), context.device, torch.bfloat16
    values, heads, parts = layer.heads * layer.width, layer.heads, 1 if context.small else 4
    channels = 2 * layer.keys * layer.width + values
    x, z = (torch.ones(1, size, dtype=dtype, device=device) for size in (channels, values))
    a, b = (torch.ones(1, heads, device=device) for _ in range(2))
    conv, rings = (torch.ones(*shape, device=device) for shape in ((_KERNEL, channels), (1, _KERNEL, channels)))
    decay, bias, norm = (torch.ones(size, device=device) for size in (heads, heads, layer.width))
    slots, positions = (torch.full((1,), value, device=device) for value in (0, 5))
    out = torch.empty_like(z)
    compiled = kernel(decode.make(layer.width, layer.width, parts, bfloat16=True), decode.BLOCKS)
    arguments = (x, z, a, b, conv, -decay, bias, norm, 1e-6, False, rings, layer.state[None], slots, positions, out)
    taken = context.recorded_seconds(lambda: launch(compiled, (heads, 1), layer.width * parts, arguments))
    result.figures["decode_s"] = taken
    # The state is read and written once.
    result.figures["decode_state_bytes_per_s"] = 2 * layer.state.nbytes / taken


def _recurrent(context: Context, result: StageResult, layer: Layer) -> None:
    parts = 1 if context.small else 4
    compiled = kernel(recurrent.make(layer.width, 32, parts))
    short = [tensor[:63].contiguous() for tensor in (layer.q, layer.k, layer.v, layer.g, layer.beta)]
    arguments = (*short, layer.state, torch.empty_like(short[2]))
    grid = (layer.width // 32, layer.heads)
    result.figures["recurrent_63_s"] = context.recorded_seconds(lambda: launch(compiled, grid, 32 * parts, arguments))


def _chunk(context: Context, result: StageResult, layer: Layer) -> None:
    chunks = len(layer.q) // _CHUNK
    prepare = kernel(chunk.make_prepare(layer.width, _CHUNK, 16))
    scan = kernel(chunk.make_scan(layer.width, _CHUNK, 32))
    total = torch.empty_like(layer.g)
    inverse, mixing = (torch.empty(layer.heads, chunks, _CHUNK, _CHUNK, device=context.device) for _ in range(2))

    def work() -> None:
        first = (layer.q, layer.k, layer.g, layer.beta, total, inverse, mixing)
        launch(prepare, (chunks, layer.heads), chunk.PREPARE_THREADS, first)
        second = (layer.q, layer.k, layer.v, layer.beta, total, inverse, mixing, layer.state, layer.out)
        launch(scan, (layer.width // 32, layer.heads), 32 * chunk.SCAN_GROUPS, second)

    result.figures["chunk_kernels_s"] = context.recorded_seconds(work, 5)


def _tensors(context: Context, result: StageResult, layer: Layer) -> None:
    """What the engine does with prompts: batched products of the library."""
    q, k, v, g, beta = (
        tensor.transpose(0, 1).contiguous() for tensor in (layer.q, layer.k, layer.v, layer.g, layer.beta)
    )
    out = torch.empty_like(v)
    result.figures["chunk_tensors_s"] = context.seconds(lambda: chunked(q, k, v, g, beta, layer.state, out), 5)


def _fla(context: Context, result: StageResult, layer: Layer) -> None:
    operations: Any = importlib.import_module("fla.ops.gated_delta_rule")
    ratio = layer.heads // layer.keys
    q, k = (tensor.repeat_interleave(ratio, dim=1)[None].to(torch.bfloat16) for tensor in (layer.q, layer.k))
    v, g, beta = layer.v[None].to(torch.bfloat16), layer.g[None], layer.beta[None].to(torch.bfloat16)

    def chunks() -> None:
        operations.chunk_gated_delta_rule(
            q, k, v, g=g, beta=beta, initial_state=layer.state[None], output_final_state=True
        )

    def one() -> None:
        operations.fused_recurrent_gated_delta_rule(
            q[:, :1],
            k[:, :1],
            v[:, :1],
            g[:, :1],
            beta[:, :1],
            initial_state=layer.state[None],
            output_final_state=True,
        )

    for name, work, ours in (("chunk", chunks, "chunk_tensors_s"), ("recurrent", one, "decode_s")):
        taken = context.recorded_seconds(work)
        result.figures[f"fla_{name}_s"] = taken
        own = result.figures[ours]
        result.figures[f"ours_over_fla_{name}"] = round(own / taken, 3) if isinstance(own, float) else None
