"""DecoderWeights: everything a decoder holds, by role, and the loader that fills it tensor by tensor."""

from collections.abc import Callable
from dataclasses import dataclass, field

from neuron.kernels.decoder.arena import Arena
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.formats.in_situ import resident_type
from neuron.kernels.formats.model_config import LayerKind, ModelConfig
from neuron.kernels.gdn import weights as gdn_weights
from neuron.kernels.weights.matrix import Floats, Matrix
from neuron.kernels.weights.names import Names
from neuron.kernels.weights.reader import WeightReader


@dataclass(slots=True)
class LayerWeights:
    """Matrices and float32 vectors of one layer under the roles of weights.names."""

    matrices: dict[str, Matrix] = field(default_factory=dict)
    vectors: dict[str, Floats] = field(default_factory=dict)


@dataclass(slots=True)
class DecoderWeights:
    embedding: Matrix
    #: The embedding itself when the head is tied.
    head: Matrix
    norm: Floats
    layers: list[LayerWeights]

    @property
    def tied(self) -> bool:
        return self.head is self.embedding

    @property
    def nbytes(self) -> int:
        total = self.embedding.nbytes + self.norm.nbytes + (0 if self.tied else self.head.nbytes)
        for layer in self.layers:
            total += sum(matrix.nbytes for matrix in layer.matrices.values())
            total += sum(vector.nbytes for vector in layer.vectors.values())
        return total


def load_weights(
    config: ModelConfig,
    reader: WeightReader,
    names: Names,
    tied: bool,
    quant: GgmlType | None,
    report: Callable[[float], None],
) -> DecoderWeights:
    """Read a checked model. One tensor is in flight at a time; matrices become what `quant` makes of them."""
    arena = Arena()

    def matrix(name: str) -> Matrix:
        read = reader.matrix(name, None if quant is None else resident_type(quant, name, reader.columns(name)))
        reader.release(name)
        return arena.settled(read)

    def norm(name: str) -> Floats:
        weight = reader.vector(name)
        if config.zero_centred_norms:
            weight += 1.0
        return weight

    embedding = matrix(names.top("embedding"))
    head = embedding if tied else matrix(names.top("head"))
    layers: list[LayerWeights] = []
    for index in range(config.num_layers):
        layers.append(_layer(config, reader, names, index, matrix, norm))
        report((index + 1) / config.num_layers)
    return DecoderWeights(embedding, head, norm(names.top("norm")), layers)


def _layer(
    config: ModelConfig,
    reader: WeightReader,
    names: Names,
    index: int,
    matrix: Callable[[str], Matrix],
    norm: Callable[[str], Floats],
) -> LayerWeights:
    layer = LayerWeights()
    roles, linear = layer_roles(config, index), config.linear
    for role in roles.matrices:
        layer.matrices[role] = matrix(names.layer(role, index))
    if "q" in layer.matrices and config.attn_output_gate:
        layer.matrices["q"], layer.matrices["q_gate"] = gdn_weights.split_gate(layer.matrices["q"], config.num_heads)
    for role in roles.linear_vectors:
        vector = reader.vector(names.layer(role, index))
        layer.vectors[role] = vector if linear is None else gdn_weights.prepared(role, vector, linear)
    for role in roles.norms:
        layer.vectors[role] = norm(names.layer(role, index))
    for role in roles.biases:
        layer.vectors[role] = reader.vector(names.layer(role, index))
    if "q_bias" in layer.vectors and config.attn_output_gate:
        halves = gdn_weights.split_gate_bias(layer.vectors["q_bias"], config.num_heads)
        layer.vectors["q_bias"], layer.vectors["q_gate_bias"] = halves
    return layer


@dataclass(slots=True, frozen=True)
class LayerRoles:
    """What a layer is made of, by the roles of weights.names. q holds the gate too, where there is one."""

    matrices: tuple[str, ...]
    linear_vectors: tuple[str, ...]
    norms: tuple[str, ...]
    biases: tuple[str, ...]


def layer_roles(config: ModelConfig, index: int) -> LayerRoles:
    matrices: tuple[str, ...] = ("gate", "up", "down")
    norms: tuple[str, ...] = ("attn_norm", "ffn_norm")
    biases: tuple[str, ...] = ("gate_bias", "up_bias", "down_bias") if config.mlp_bias else ()
    if config.layer_kinds[index] is LayerKind.LINEAR:
        return LayerRoles((*matrices, *gdn_weights.MATRICES), gdn_weights.VECTORS, norms, biases)
    matrices += ("q", "k", "v", "o")
    norms += ("q_norm", "k_norm") if config.qk_norm else ()
    biases += ("q_bias", "k_bias", "v_bias") if config.attention_bias else ()
    biases += ("o_bias",) if config.attention_out_bias else ()
    return LayerRoles(matrices, (), norms, biases)
