"""load_model: files to a resident DeviceModel. The one entry of this package for device processes."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from neuron.kernels.attention.rope import build_rope
from neuron.kernels.decoder.buffers import STEP_ROWS, build_workspace, step_shape
from neuron.kernels.decoder.model import DecoderModel
from neuron.kernels.decoder.prefill import Prefill
from neuron.kernels.decoder.weights import DecoderWeights, load_weights
from neuron.kernels.engine import Collectives, DeviceModel, LoadSpec, ReportProgress
from neuron.kernels.errors import UnsupportedLoad
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.formats.model_config import LayerKind, ModelConfig
from neuron.kernels.opened import OpenedModel, open_model
from neuron.kernels.progress import reported
from neuron.kernels.threads import Team, default_threads
from neuron.kernels.weights.matrix import Floats
from neuron.kernels.weights.reader import WeightReader

if TYPE_CHECKING:
    from neuron.kernels.vision.tower import VisionTower


def load_model(
    spec: LoadSpec,
    device: str,
    progress: ReportProgress,
    *,
    threads: int | None = None,
    group: Collectives | None = None,
) -> DeviceModel:
    """Check, read and build the model of `spec`, or one rank's part of it, on `device` ("cpu", "cpu:N", "cuda:N").

    One CPU runs the compiled engine; a GPU, and the ranks of a `group`, the layered one. All ranks load at once: the
    warm-up at the end takes part in collectives. torch, which takes 190 MB, is imported only where it computes. Nothing
    of the files stays mapped. Raises formats.errors.FormatError
    (damaged or unknown files, before weights are read) and kernels.errors.LoadError (what cannot be run here).
    """
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise UnsupportedLoad("unsupported_device", f"Models cannot be loaded on {device} by this build.")
    # The ranks of a group share the host's cores, to compute or to quantise.
    team = Team(threads or max(1, default_threads() // spec.world_size))
    try:
        opened = open_model(spec, team)
        if kind == "cpu" and spec.world_size == 1 and group is None:
            return _load_compiled(spec, opened, team, progress)
        import torch

        from neuron.kernels.layered.load import load_layered

        torch.set_num_threads(team.threads)
        return load_layered(spec, opened, torch.device(device if kind == "cuda" else "cpu"), team, progress, group)
    except BaseException:
        team.close()
        raise


def _load_compiled(spec: LoadSpec, opened: OpenedModel, team: Team, progress: ReportProgress) -> DeviceModel:
    config, reader, tied, names, vision, quant, factors = opened
    weights = load_weights(config, reader, names, tied, quant, lambda done: progress("read", done))
    # Rounding to bfloat16 would lose more than it saves where every matrix is in float32, stored or converted.
    exact = all(matrix.kind is GgmlType.F32 for layer in weights.layers for matrix in layer.matrices.values())
    tower = None if vision is None else _tower(config, reader, vision, exact, team, lambda done: progress("read", done))
    model = build_model(config, weights, team, spec.max_context, exact=exact, rope_factors=factors, tower=tower)
    with reported(progress):
        warm_up(model)
    return model


def _tower(
    config: ModelConfig, reader: WeightReader, prefix: str, exact: bool, team: Team, report: Callable[[float], None]
) -> "VisionTower":
    import torch

    from neuron.kernels.vision.tower import VisionTower
    from neuron.kernels.vision.weights import load_tower_weights

    assert config.vision is not None
    torch.set_num_threads(team.threads)
    dtype = torch.float32 if exact else torch.bfloat16
    return VisionTower(config.vision, load_tower_weights(config.vision, reader, prefix, dtype, report))


def build_model(
    config: ModelConfig,
    weights: DecoderWeights,
    team: Team,
    max_context: int,
    *,
    exact: bool = False,
    rope_factors: Floats | None = None,
    tower: "VisionTower | None" = None,
) -> DecoderModel:
    """A model of weights that are in memory. `exact`: float32 products and cache. The model owns `team` from here."""
    kv_kind = GgmlType.F32 if exact else GgmlType.F16
    context = max(1, min(max_context, config.max_position))
    shape = step_shape(config, kv_kind, context, weights.embedding.rows)
    workspace = build_workspace(config, weights, shape, team)
    prefill = Prefill(config, weights, workspace, team, exact=exact)
    rope = build_rope(config.rope, config.max_position, rope_factors)
    summary = _summary(config, context, kv_kind, team)
    model: Callable[..., DecoderModel] = DecoderModel
    if tower is not None:
        from neuron.kernels.vision.model import VisionModel

        model = partial(VisionModel, tower)
    return model(config, weights, workspace, prefill, rope, team, context, kv_kind, summary)


def warm_up(model: DecoderModel) -> None:
    """Run both paths once, so that everything is compiled and the buffers are in memory."""
    logits = np.empty(model.vocab_size, dtype=np.float32)
    for count in (1, STEP_ROWS + 1):
        if count <= model.context_length:
            model.forward(-1, np.zeros(count, dtype=np.int32), 0, logits)
            model.clear(-1)


def _summary(config: ModelConfig, context: int, kv_kind: GgmlType, team: Team) -> str:
    count = sum(kind is LayerKind.LINEAR for kind in config.layer_kinds)
    linear = f" ({count} linear)" if count else ""
    return (
        f"{config.architecture.value}: {config.num_layers} layers{linear}, hidden {config.hidden_size}, "
        f"{config.num_heads}/{config.num_kv_heads} heads of {config.head_dim}, context {context}, "
        f"KV {kv_kind.name.lower()}, {team.threads} threads"
    )
