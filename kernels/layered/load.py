"""load_layered: an opened model, or one rank's part of it, on a device. Called by kernels.load."""

import msgspec
import numpy as np
import torch

from neuron.kernels.attention.rope import build_rope
from neuron.kernels.decoder.buffers import STEP_ROWS
from neuron.kernels.engine import Collectives, DeviceModel, LoadSpec, ModelMemory, ReportProgress
from neuron.kernels.errors import IndivisibleShard, UnsupportedLoad
from neuron.kernels.formats.model_config import LayerKind, ModelConfig
from neuron.kernels.formats.sharding import Sharding, indivisible
from neuron.kernels.gdn.chunk.cpu import CHUNK
from neuron.kernels.gdn.prefill import LinearPrefill
from neuron.kernels.layered.delta import CompiledDelta, Delta, TorchDelta
from neuron.kernels.layered.graph import CudaRecorder, Recorder
from neuron.kernels.layered.model import LayeredModel, SeeingLayeredModel
from neuron.kernels.layered.ops import TorchOps
from neuron.kernels.layered.passes import Passes
from neuron.kernels.layered.placement import Kernels, Placement
from neuron.kernels.layered.stack import Stack
from neuron.kernels.layered.weights import LayeredWeights, ShardLoader, all_float32
from neuron.kernels.opened import OpenedModel
from neuron.kernels.progress import reported
from neuron.kernels.threads import Team
from neuron.kernels.vision.tower import VisionTower
from neuron.kernels.vision.weights import load_tower_weights

#: Most tokens of one pass.
HOST_ROWS = 512
DEVICE_ROWS = 1024
_WARM_SEQUENCE = -1


class EngineOptions(msgspec.Struct, frozen=True):
    """What a test may ask of a CPU so that it goes the way of a GPU."""

    kernels: Kernels = Kernels.COMPILED
    #: In the place of CUDA graphs, for kernels that find positions on the device.
    recorder: Recorder | None = None


def load_layered(
    spec: LoadSpec,
    opened: OpenedModel,
    device: torch.device,
    team: Team,
    progress: ReportProgress,
    group: Collectives | None = None,
    options: EngineOptions = EngineOptions(),  # noqa: B008  (frozen)
) -> DeviceModel:
    """The part of rank `spec.rank` of `spec.world_size`. The model owns `team` from here.

    Raises IndivisibleShard, WeightMismatch, OutOfMemory, UnsupportedLoad.
    """
    sharding = _sharding(spec, opened.config, group)
    exact = all_float32(opened.config, opened.reader, opened.names, opened.quant)
    kernels = Kernels.CUDA if device.type == "cuda" else options.kernels
    place = Placement(device, torch.float32 if exact else torch.bfloat16, team, kernels)
    loader = ShardLoader(sharding, opened.reader, opened.names, place, opened.quant)
    with torch.inference_mode():
        weights = loader.load(opened.tied, lambda done: progress("read", done))
        tower = _tower(opened, place, progress)
    model = _build(spec, opened, sharding, weights, place, group, options, tower)
    with reported(progress):
        warm_up(model)
    model.note_recording()
    return model


def warm_up(model: LayeredModel) -> None:
    """Every path once, the single step often enough to be recorded. With a group, all ranks do this at once.

    Products with blocks are compiled for 1, 2, 4 and 8 rows at a time, and for more than a chunk.
    """
    logits = np.empty(model.vocab_size, dtype=np.float32)
    for count in (1, 1, 1, 2, 9, CHUNK + 1, 3 * CHUNK):
        if count <= model.context_length:
            model.forward(_WARM_SEQUENCE, np.zeros(count, dtype=np.int32), 0, logits)
            model.clear(_WARM_SEQUENCE)


def _sharding(spec: LoadSpec, config: ModelConfig, group: Collectives | None) -> Sharding:
    ranks = spec.world_size
    if (1 if group is None else group.world_size) != ranks or (group is not None and group.rank != spec.rank):
        raise UnsupportedLoad("tensor_parallel_unavailable", f"Rank {spec.rank} of {ranks} is not in such a group.")
    problem = indivisible(config, ranks)
    if problem is not None:
        label, count = problem
        raise IndivisibleShard(f"{count} {label} cannot be shared out over {ranks} devices.")
    return Sharding(config, spec.rank, ranks)


def _tower(opened: OpenedModel, place: Placement, progress: ReportProgress) -> VisionTower | None:
    vision = opened.config.vision
    if opened.vision is None or vision is None:
        return None
    weights = load_tower_weights(
        vision, opened.reader, opened.vision, place.dtype, lambda done: progress("read", done), place.device
    )
    return VisionTower(vision, weights)


def _build(
    spec: LoadSpec,
    opened: OpenedModel,
    sharding: Sharding,
    weights: LayeredWeights,
    place: Placement,
    group: Collectives | None,
    options: EngineOptions,
    tower: VisionTower | None,
) -> LayeredModel:
    config, own = opened.config, sharding.config
    context, vocab = max(1, min(spec.max_context, config.max_position)), weights.embedding.rows
    ops = _ops(own, place, context)
    rows = HOST_ROWS if place.on_host else DEVICE_ROWS
    delta = _delta(own, place, rows)
    stack = Stack(own, weights, ops, delta, group, sharding.vocabulary(vocab)[2])
    recorder = options.recorder if place.on_host else CudaRecorder()
    rope = build_rope(config.rope, config.max_position, opened.rope_factors)
    passes = Passes(own, stack, rope, place, context, rows, recorder)
    memory = ModelMemory(
        weights=weights.nbytes + (0 if tower is None else tower.nbytes),
        kv_per_token=own.kv_elements_per_token * (4 if place.exact else 2),
        state=own.state_bytes,
        workspace=_activations(own, rows, vocab) + weights.scratch_nbytes + (0 if delta is None else delta.nbytes),
    )
    line = _summary(config, own, context, place, sharding)
    if tower is None:
        return LayeredModel(passes, vocab, context, memory, line)
    line += f", vision tower of {tower.config.depth} blocks"
    return SeeingLayeredModel(tower, passes, vocab, context, memory, line)


def _ops(own: ModelConfig, place: Placement, context: int) -> TorchOps:
    epsilon, adjacent = own.rms_norm_eps, own.rope.adjacent_pairs
    if place.kernels is not Kernels.CUDA:
        few = STEP_ROWS if place.kernels is Kernels.COMPILED else 0
        return TorchOps(place.dtype, torch.float32, epsilon, adjacent, few)
    from neuron.kernels.layered.cuda_ops import CudaOps

    return CudaOps(own, place.dtype, context, place.device)


def _delta(own: ModelConfig, place: Placement, rows: int) -> Delta | None:
    if own.linear is None:
        return None
    if place.kernels is Kernels.COMPILED:
        return CompiledDelta(LinearPrefill(own.linear, rows, own.rms_norm_eps, place.team, exact=True))
    if place.kernels is Kernels.TENSORS:
        return TorchDelta(own.linear, own.rms_norm_eps, place.device)
    from neuron.kernels.layered.cuda_delta import CudaDelta

    return CudaDelta(own.linear, own.rms_norm_eps, place.device)


def _activations(own: ModelConfig, rows: int, vocab: int) -> int:
    """About what one pass takes beside the weights, in float32."""
    wide = own.hidden_size * 3 + own.intermediate_size * 3 + own.num_heads * own.head_dim * 3
    return 4 * (rows * wide + 2 * vocab)


def _summary(config: ModelConfig, own: ModelConfig, context: int, place: Placement, sharding: Sharding) -> str:
    count = sum(kind is LayerKind.LINEAR for kind in config.layer_kinds)
    linear = f" ({count} linear)" if count else ""
    shared = f", rank {sharding.rank} of {sharding.ranks}" if sharding.ranks > 1 else ""
    where = f"{place.team.threads} threads" if place.on_host else str(place.device)
    return (
        f"{config.architecture.value}: {config.num_layers} layers{linear}, hidden {config.hidden_size}, "
        f"{own.num_heads}/{own.num_kv_heads} heads of {config.head_dim}{shared}, context {context}, "
        f"products {_short(place.dtype)}, KV {_short(place.rows_dtype)}, {where}"
    )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
