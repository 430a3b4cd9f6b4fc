"""Stages `model-0.8B` and `model-27B`: random weights through the real engine, timed against the machine's ceilings."""

import statistics
import time
from collections.abc import Callable

import msgspec
import numpy as np
import torch

from neuron.kernels.engine import LoadSpec
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.formats.model_config import ModelConfig
from neuron.kernels.layered.load import EngineOptions, load_layered
from neuron.kernels.layered.model import LayeredModel
from neuron.kernels.layered.placement import Kernels
from neuron.kernels.threads import Team
from ops.gpu_check.context import Context, share
from ops.gpu_check.random_model import SHAPES, opened, tiny, weight_bytes
from ops.gpu_check.report import StageResult

#: Of free memory, for weights; the rest is for cache, activations and the tile of a dequantised matrix.
_WEIGHT_SHARE = 0.75
_CONTEXT = 8192
#: Tokens that a step's time is the median of.
_STEPS = 48


class Again:
    """Implements layered.graph.Recorder where there are no CUDA graphs: the work is simply done again."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        return work


def small(context: Context, result: StageResult) -> None:
    _run(context, result, SHAPES["0.8B"], GgmlType.BF16, GgmlType.BF16)


def large(context: Context, result: StageResult) -> None:
    _run(context, result, SHAPES["27B"], GgmlType.Q4_K, GgmlType.Q6_K)


def _run(context: Context, result: StageResult, config: ModelConfig, quant: GgmlType, ends: GgmlType) -> None:
    config = tiny(config) if context.small else _fitting(context, result, config, quant, ends)
    spec = LoadSpec("safetensors", (), 256 if context.small else _CONTEXT)
    begun = time.monotonic()
    model = load_layered(
        spec,
        opened(config, quant, ends),
        context.device,
        Team(1 if context.small else 8),
        lambda stage, fraction: None,
        options=EngineOptions() if context.cuda else EngineOptions(Kernels.TENSORS, Again()),
    )
    assert isinstance(model, LayeredModel)
    figures = result.figures
    figures |= {"load_s": round(time.monotonic() - begun, 2), "layers": config.num_layers, "summary": model.summary}
    figures["weight_bytes"] = model.memory.weights
    try:
        _Timing(context, result, config, model).run()
    finally:
        model.close()


def _fitting(
    context: Context, result: StageResult, config: ModelConfig, quant: GgmlType, ends: GgmlType
) -> ModelConfig:
    """The model, or as many of its layers (in fours) as fit; figures then say how many."""
    free = torch.cuda.mem_get_info(context.device)[0] if context.cuda else 1 << 40
    layers = config.num_layers
    while layers > 4:
        fitting = msgspec.structs.replace(config, num_layers=layers, layer_kinds=config.layer_kinds[:layers])
        if weight_bytes(fitting, quant, ends) <= free * _WEIGHT_SHARE:
            break
        layers -= 4
    if layers < config.num_layers:
        result.missing(f"{free >> 20} MiB are free: {layers} of {config.num_layers} layers were run")
    return msgspec.structs.replace(config, num_layers=layers, layer_kinds=config.layer_kinds[:layers])


class _Timing:
    """Prompts, then single tokens at two depths, then the same step without the host between."""

    def __init__(self, context: Context, result: StageResult, config: ModelConfig, model: LayeredModel) -> None:
        self._context, self._result, self._config, self._model = context, result, config, model
        row = torch.empty(model.vocab_size, pin_memory=context.cuda)
        self._row = row.numpy()

    def run(self) -> None:
        for tokens in (16, 80) if self._context.small else (512, 2048):
            self._prefill(tokens)
        for depth in (16,) if self._context.small else (128, 4096):
            if self._context.left < 5:
                self._result.lines.append("no time left for every depth")
                return
            self._decode(depth)

    def _tokens(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        return np.arange(count, dtype=np.int32) % self._model.vocab_size

    def _prefill(self, tokens: int) -> None:
        taken = []
        for _ in range(2 if self._context.small else 4):
            self._model.clear(0)
            start = time.perf_counter()
            self._model.forward(0, self._tokens(tokens), 0, self._row)
            taken.append(time.perf_counter() - start)
        best = min(taken)
        operations = 2 * _product_weights(self._config) * tokens
        self._result.figures[f"prefill_{tokens}_tokens_per_s"] = round(tokens / best, 1)
        rate = share(operations / best, self._context.ceilings.matrix_rate)
        self._result.figures[f"prefill_{tokens}_of_matrix_rate"] = rate
        self._result.lines.append(f"prefill {tokens}: {tokens / best:.0f} tok/s, {_percent(rate)} of the matrix rate")

    def _decode(self, depth: int) -> None:
        model, steps = self._model, 4 if self._context.small else _STEPS
        model.clear(0)
        for start in range(0, depth, 1024):
            model.forward(0, self._tokens(min(1024, depth - start)), start, None)
        taken = []
        for step in range(steps):
            start_time = time.perf_counter()
            model.forward(0, self._tokens(1), depth + step, self._row)
            taken.append(time.perf_counter() - start_time)
        if not np.isfinite(self._row).all():
            self._result.failed(f"logits at depth {depth} are not finite")
        wall = statistics.median(taken[2:])
        moved = self._moved(depth)
        of_bandwidth = share(moved / wall, self._context.ceilings.bandwidth)
        self._result.figures |= {
            f"decode_{depth}_step_s": wall,
            f"decode_{depth}_tokens_per_s": round(1 / wall, 1),
            f"decode_{depth}_of_bandwidth": of_bandwidth,
        }
        line = f"decode at {depth}: {1 / wall:.1f} tok/s, {_percent(of_bandwidth)} of the bandwidth"
        self._gap(depth, wall, line)

    def _gap(self, depth: int, wall: float, line: str) -> None:
        """Wall time of a step less the device's own: launching, copies, the host's work between two steps."""
        step = self._model.replayable(0)
        if step is None:
            self._result.figures[f"decode_{depth}_gap_s"] = None
            self._result.lines.append(f"{line}; steps are not recorded")
            return
        alone = self._context.seconds(step, 16)
        self._result.figures |= {f"decode_{depth}_device_s": alone, f"decode_{depth}_gap_s": max(wall - alone, 0.0)}
        self._result.lines.append(f"{line}; {max(wall - alone, 0.0) * 1e6:.0f} us between steps")

    def _moved(self, depth: int) -> int:
        """Bytes that one token reads at least: weights but for an embedding table of its own, cache, state twice."""
        config, memory = self._config, self._model.memory
        table = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size * 210 // 256
        return memory.weights - table + memory.kv_per_token * depth + 2 * memory.state


def _product_weights(config: ModelConfig) -> int:
    """Weights that every token of a prompt is multiplied with: all matrices of the layers."""
    opened_ = weight_bytes(config, GgmlType.F32, GgmlType.F32) // 4
    ends = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    return opened_ - ends


def _percent(part: float | None) -> str:
    return "?" if part is None else f"{part:.0%}"
