"""LayeredWeights: the parts of a decoder that one rank holds on its device, and the loader that fills it.

One tensor is in flight at a time, cut while it is read: neither the host nor the device ever holds a second copy of
more than the matrices of one layer that have the same input.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from neuron.kernels.decoder.weights import layer_roles
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.formats.in_situ import resident_type
from neuron.kernels.formats.model_config import ModelConfig
from neuron.kernels.formats.sharding import Cut, Ranges, Sharding
from neuron.kernels.gdn import weights as gdn_weights
from neuron.kernels.layered.linear import Linear
from neuron.kernels.layered.placement import Placement
from neuron.kernels.weights.matrix import Floats, Matrix, aligned_bytes
from neuron.kernels.weights.names import Names
from neuron.kernels.weights.reader import WeightReader
from neuron.kernels.weights.stored import indices

#: What has the same input.
GATED_QUERY = ("q", "k", "v", "q_gate")
GATE_UP, QKV_Z, A_B = ("gate", "up"), ("linear_qkv", "linear_z"), ("linear_a", "linear_b")
JOINED = (GATED_QUERY, GATE_UP, QKV_Z, A_B)


@dataclass(slots=True)
class LayerParts:
    """One layer's linears and float32 vectors under the roles of weights.names; q and its gate are two linears."""

    linears: dict[str, Linear] = field(default_factory=dict)
    #: Linears of the same input that lie one behind the other, as one: a single token takes them in one product.
    joined: dict[tuple[str, ...], Linear] = field(default_factory=dict)
    vectors: dict[str, torch.Tensor] = field(default_factory=dict)
    #: The vectors of the linear layers once more, where compiled code reads them by address.
    host_vectors: dict[str, Floats] = field(default_factory=dict)

    def project(self, roles: tuple[str, ...], x: torch.Tensor) -> list[torch.Tensor]:
        """x [n, cols] times each of `roles` that the layer has. Each result is contiguous."""
        held = tuple(role for role in roles if role in self.linears)
        joined = self.joined.get(held) if len(x) == 1 else None
        if joined is None:
            return [self.linears[role].forward(x) for role in held]
        return list(torch.split(joined.forward(x), [self.linears[role].rows for role in held], dim=1))

    def join(self, roles: tuple[str, ...]) -> None:
        """Lay the matrices of those of `roles` that are there one behind the other, if all are stored alike."""
        held = tuple(role for role in roles if role in self.linears)
        parts = [self.linears[role] for role in held]
        joined = parts[0].followed_by(parts[1:]) if len(parts) > 1 else None
        if joined is None:
            return
        self.joined[held], first = joined, 0
        for role, part in zip(held, parts, strict=True):
            self.linears[role] = joined.part(first, first + part.rows)
            first += part.rows

    @property
    def nbytes(self) -> int:
        linears = sum(linear.nbytes for linear in self.linears.values())
        return linears + sum(vector.nbytes for vector in self.vectors.values())


@dataclass(slots=True)
class LayeredWeights:
    """`head`: this rank's rows of it, a view of the embedding when they are tied."""

    embedding: Linear
    head: Linear
    tied: bool
    norm: torch.Tensor
    layers: list[LayerParts]

    @property
    def nbytes(self) -> int:
        head = 0 if self.tied else self.head.nbytes
        return self.embedding.nbytes + head + self.norm.nbytes + sum(layer.nbytes for layer in self.layers)

    @property
    def scratch_nbytes(self) -> int:
        """The most that one product takes beside its matrix."""
        return max(linear.scratch_nbytes for layer in self.layers for linear in layer.linears.values())


def all_float32(config: ModelConfig, reader: WeightReader, names: Names, quant: GgmlType | None) -> bool:
    """Whether every matrix of the layers will be float32: then nothing is rounded anywhere."""
    for index in range(config.num_layers):
        for role in layer_roles(config, index).matrices:
            name = names.layer(role, index)
            target = _target(reader, name, quant)
            if (reader.kind(name) if target is None else target) is not GgmlType.F32:
                return False
    return True


class ShardLoader:
    """Reads the rank's parts of a checked model. `quant`: what matrices become; None keeps them."""

    def __init__(
        self, sharding: Sharding, reader: WeightReader, names: Names, placement: Placement, quant: GgmlType | None
    ) -> None:
        self._sharding, self._reader, self._names = sharding, reader, names
        self._placement, self._quant = placement, quant
        self._config = sharding.config

    def load(self, tied: bool, report: Callable[[float], None]) -> LayeredWeights:
        """Raises IndivisibleShard, WeightMismatch, OutOfMemory."""
        embedding = self._linear(self._names.top("embedding"))
        first, last, _ = self._sharding.vocabulary(embedding.rows)
        if tied:
            head = embedding.part(first, last)
        else:
            head = self._linear(self._names.top("head"), Cut(rows=((first, last),)))
        layers = []
        for index in range(self._config.num_layers):
            layers.append(self._layer(index))
            report((index + 1) / self._config.num_layers)
        return LayeredWeights(embedding, head, tied, self._norm(self._names.top("norm")), layers)

    def _layer(self, index: int) -> LayerParts:
        layer, roles, place = LayerParts(), layer_roles(self._config, index), self._placement
        for role in roles.matrices:
            matrix = self._matrix(self._names.layer(role, index), self._sharding.matrix(role))
            if role == "q" and self._config.attn_output_gate:
                query, gate = gdn_weights.split_gate(matrix, self._config.num_heads)
                layer.linears["q"], layer.linears["q_gate"] = place.linear(query), place.linear(gate)
            elif role in ("linear_a", "linear_b"):
                # Rounding the gates to bfloat16 would let the state drift with length.
                layer.linears[role] = place.wide_linear(matrix)
            else:
                layer.linears[role] = place.linear(matrix)
        for joined in JOINED:
            layer.join(joined)
        for role in roles.norms:
            layer.vectors[role] = self._norm(self._names.layer(role, index))
        for role in (*roles.biases, *roles.linear_vectors):
            values = self._vector(role, index)
            layer.vectors[role] = place.vector(values)
            if place.on_host:
                layer.host_vectors[role] = values
            if role == "q_bias" and self._config.attn_output_gate:
                halves = gdn_weights.split_gate_bias(values, self._config.num_heads)
                layer.vectors["q_bias"], layer.vectors["q_gate_bias"] = (place.vector(half) for half in halves)
        return layer

    def _linear(self, name: str, cut: Cut = Cut()) -> Linear:  # noqa: B008  (frozen)
        return self._placement.linear(self._matrix(name, cut))

    def _matrix(self, name: str, cut: Cut) -> Matrix:
        matrix = self._reader.matrix(name, _target(self._reader, name, self._quant), cut)
        self._reader.release(name)
        return matrix

    def _vector(self, role: str, index: int) -> Floats:
        values = self._reader.vector(self._names.layer(role, index))
        linear, ranges = self._config.linear, self._sharding.rows(role)
        if role in gdn_weights.VECTORS and linear is not None:
            if role == "linear_conv":
                values = _stretches(values.reshape(-1, linear.conv_kernel), ranges).reshape(-1)
                return gdn_weights.prepared(role, values, linear)
            return gdn_weights.prepared(role, _stretches(values, ranges), linear)
        return _stretches(values, ranges)

    def _norm(self, name: str) -> torch.Tensor:
        weight = self._reader.vector(name)
        if self._config.zero_centred_norms:
            weight += 1.0
        return self._placement.vector(weight)


def _target(reader: WeightReader, name: str, quant: GgmlType | None) -> GgmlType | None:
    return None if quant is None else resident_type(quant, name, reader.columns(name))


def _stretches(values: Floats, ranges: Ranges | None) -> Floats:
    """The rows of `values` that lie in `ranges`, in aligned memory."""
    if ranges is None:
        return values
    chosen = values[indices(ranges)]
    copy: Floats = aligned_bytes(chosen.nbytes).view(np.float32).reshape(chosen.shape)
    copy[:] = chosen
    return copy
