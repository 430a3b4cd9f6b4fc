"""RandomReader: weights out of nothing, in the shape of a published model, for the loader of the layered engine.

No file is written: a 27B at four bits would take minutes on most disks.
"""

import math

import msgspec
import numpy as np

from neuron.kernels.formats.expected import PREFIXES, SAFETENSORS, Shape, expected_tensors
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.formats.in_situ import FLOATS
from neuron.kernels.formats.model_config import (
    Architecture,
    LayerKind,
    LinearAttentionConfig,
    ModelConfig,
    RopeConfig,
)
from neuron.kernels.formats.sharding import WHOLE, Cut
from neuron.kernels.opened import OpenedModel
from neuron.kernels.weights.matrix import Bytes, Floats, Matrix, aligned_bytes, empty_matrix
from neuron.kernels.weights.names import Names

#: Byte offsets of the float16 scales in a block, and values that leave weights small and about zero.
_SCALES = {GgmlType.Q4_K: {0: 1e-4, 2: 7.5e-4}, GgmlType.Q6_K: {208: 1e-5}}
_POOL_BLOCKS = 1 << 14
_WEIGHT_SCALE = 0.02


class RandomReader:
    """Implements weights.reader.WeightReader. Matrices are `quant`, embedding and head `ends`, gates bfloat16."""

    def __init__(self, shapes: dict[str, Shape], quant: GgmlType, ends: GgmlType) -> None:
        self._shapes, self._quant, self._ends = shapes, quant, ends
        self._pools: dict[GgmlType, Bytes] = {}

    def has(self, name: str) -> bool:
        return name in self._shapes

    def columns(self, name: str) -> int:
        return math.prod(self._shapes[name][1:])

    def kind(self, name: str) -> GgmlType:
        """See WeightReader.kind."""
        if name.endswith(("in_proj_a.weight", "in_proj_b.weight")) and self._quant is not GgmlType.F32:
            return GgmlType.BF16
        return self._ends if name.endswith(("embed_tokens.weight", "lm_head.weight")) else self._quant

    def release(self, name: str) -> None:
        pass

    def matrix(self, name: str, kind: GgmlType | None = None, cut: Cut = WHOLE) -> Matrix:
        """Only whole matrices, as they are."""
        whole = cut == WHOLE or cut == Cut(rows=((0, self._shapes[name][0]),))
        if not whole or kind not in (None, self.kind(name)):
            raise ValueError("random weights are neither cut nor converted")
        made = empty_matrix(self.kind(name), self._shapes[name][0], self.columns(name))
        pool = self._pool(made.kind)
        flat = made.data.reshape(-1)
        for first in range(0, flat.size, pool.size):
            part = flat[first : first + pool.size]
            part[:] = pool[: part.size]
        return made

    def vector(self, name: str) -> Floats:
        """Norms of one, everything else small."""
        size = math.prod(self._shapes[name])
        vector = aligned_bytes(size * 4).view(np.float32)
        vector[:] = 0.0 if "norm" in name and "linear_attn" not in name else 1.0 if "norm" in name else 0.1
        return vector

    def _pool(self, kind: GgmlType) -> Bytes:
        if kind not in self._pools:
            random = np.random.default_rng(int(kind))
            if kind in FLOATS:
                values = random.standard_normal(_POOL_BLOCKS * 32, dtype=np.float32) * np.float32(_WEIGHT_SCALE)
                bits = values if kind is GgmlType.F32 else (values.view(np.uint32) >> 16).astype(np.uint16)
                self._pools[kind] = bits.view(np.uint8)
            else:
                pool = random.integers(0, 256, (_POOL_BLOCKS, kind.type_size), dtype=np.uint8)
                for offset, scale in _SCALES[kind].items():
                    pool[:, offset : offset + 2] = np.array([scale], np.float16).view(np.uint8)
                self._pools[kind] = pool.reshape(-1)
        return self._pools[kind]


def hybrid(
    layers: int, hidden: int, inner: int, heads: tuple[int, int], linear: tuple[int, int], tied: bool
) -> ModelConfig:
    """The hybrid family's published widths. `heads`: query and kv heads; `linear`: key and value heads."""
    return ModelConfig(
        architecture=Architecture.QWEN3_5,
        vocab_size=248_320,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=256,
        intermediate_size=inner,
        rms_norm_eps=1e-6,
        max_position=262_144,
        rope=RopeConfig(theta=1e7, rotary_dim=64, mrope_section=(11, 11, 10), mrope_interleaved=True),
        layer_kinds=tuple(LayerKind.FULL if i % 4 == 3 else LayerKind.LINEAR for i in range(layers)),
        tie_word_embeddings=tied,
        qk_norm=True,
        zero_centred_norms=True,
        attn_output_gate=True,
        linear=LinearAttentionConfig(
            key_heads=linear[0], value_heads=linear[1], key_dim=128, value_dim=128, conv_kernel=4
        ),
    )


SHAPES = {
    "0.8B": hybrid(24, 1024, 3584, (8, 2), (16, 16), True),
    "27B": hybrid(64, 5120, 17408, (24, 4), (16, 48), False),
}


def tiny(config: ModelConfig) -> ModelConfig:
    """Four narrow layers: for the CPU."""
    assert config.linear is not None
    linear = msgspec.structs.replace(config.linear, key_heads=1, value_heads=8, key_dim=32, value_dim=32)
    return msgspec.structs.replace(
        config,
        vocab_size=320,
        hidden_size=256,
        num_layers=4,
        num_heads=2,
        num_kv_heads=1,
        head_dim=128,
        intermediate_size=256,
        max_position=512,
        layer_kinds=config.layer_kinds[:4],
        linear=linear,
    )


def opened(config: ModelConfig, quant: GgmlType, ends: GgmlType) -> OpenedModel:
    """What kernels.layered.load takes, as if files had been opened."""
    shapes = expected_tensors(config, SAFETENSORS)
    tied = bool(config.tie_word_embeddings)
    reader = RandomReader(shapes, quant, ends)
    return OpenedModel(config, reader, tied, Names(config, SAFETENSORS, PREFIXES[0]), None, None, None)


def weight_bytes(config: ModelConfig, quant: GgmlType, ends: GgmlType) -> int:
    """Bytes of all matrices."""
    shapes = expected_tensors(config, SAFETENSORS)
    reader = RandomReader(shapes, quant, ends)
    return sum(reader.kind(name).nbytes(math.prod(shape)) for name, shape in shapes.items() if len(shape) == 2)
