"""How a model is cut for the ranks of a tensor-parallel group: what must divide, and which parts a rank holds. Pure.

Read by preflight (can it be cut, how many bytes has a rank?) and by the loader (make it so).
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from neuron.kernels.formats.model_config import LinearAttentionConfig, ModelConfig

Ranges = tuple[tuple[int, int], ...]
"""Stretches [begin, end) of rows or columns, in the order in which they are laid side by side."""


@dataclass(slots=True, frozen=True)
class Cut:
    """The part of a matrix that a rank holds; None: all rows, all columns."""

    rows: Ranges | None = None
    cols: Ranges | None = None


WHOLE = Cut()


def indivisible(config: ModelConfig, ranks: int) -> tuple[str, int] | None:
    """The first thing that cannot be shared out over `ranks`, and how many of it there are; None if all can.

    Key-value heads and linear key heads may be fewer than ranks: then several ranks hold the same one.
    """
    for label, count, repeated in _shared(config):
        if count % ranks and not (repeated and ranks % count == 0):
            return label, count
    return None


def fitting_ranks(config: ModelConfig, below: int) -> int:
    """The largest number of ranks under `below` that everything divides by; 1 always does."""
    return next(ranks for ranks in range(below - 1, 0, -1) if indivisible(config, ranks) is None)


def _shared(config: ModelConfig) -> Iterable[tuple[str, int, bool]]:
    yield "query heads", config.num_heads, False
    yield "key-value heads", config.num_kv_heads, True
    yield "intermediate rows", config.intermediate_size, False
    if config.linear is not None:
        yield "linear key heads", config.linear.key_heads, True
        yield "linear value heads", config.linear.value_heads, False


class Sharding:
    """The cuts of one rank of a model that `indivisible` has nothing against."""

    def __init__(self, config: ModelConfig, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self._config = config
        self.config = _local(config, ranks)
        """The config of this rank's part: heads and widths are its own, the vocabulary is the model's."""

    def matrix(self, role: str) -> Cut:
        """The part of a layer's matrix (roles of weights.names; q holds the gate too, where there is one)."""
        if self.ranks == 1:
            return WHOLE
        if role == "o":
            return Cut(cols=self._query_rows(1))
        if role == "down":
            return Cut(cols=self._inner())
        if role == "linear_out":
            return Cut(cols=self._value_rows(self._linear.value_dim))
        return Cut(rows=self.rows(role))

    def rows(self, role: str) -> Ranges | None:
        """The stretch of a matrix's rows, or of a vector's numbers, that this rank holds; None: all of them."""
        if self.ranks == 1:
            return None
        if role in ("q", "q_bias"):
            return self._query_rows(2 if self._config.attn_output_gate else 1)
        if role in ("k", "v", "k_bias", "v_bias"):
            return (_stretch(self._config.num_kv_heads, self.rank, self.ranks, self._config.head_dim),)
        if role in ("gate", "up", "gate_bias", "up_bias"):
            return self._inner()
        if role in ("linear_qkv", "linear_conv"):
            return self._channels()
        if role == "linear_z":
            return self._value_rows(self._linear.value_dim)
        if role in ("linear_a", "linear_b", "linear_decay", "linear_dt_bias"):
            return self._value_rows(1)
        return None

    def vocabulary(self, rows: int) -> tuple[int, int, int]:
        """First and last row of the head on this rank, and the rows that every rank counts as (the last may lack)."""
        width = -(-rows // self.ranks)
        return min(rows, self.rank * width), min(rows, (self.rank + 1) * width), width

    @property
    def _linear(self) -> LinearAttentionConfig:
        assert self._config.linear is not None
        return self._config.linear

    def _query_rows(self, halves: int) -> Ranges:
        return (_stretch(self._config.num_heads, self.rank, self.ranks, halves * self._config.head_dim),)

    def _inner(self) -> Ranges:
        return (_stretch(self._config.intermediate_size, self.rank, self.ranks, 1),)

    def _channels(self) -> Ranges:
        """q, k and v lie one after the other; each is cut by itself."""
        linear = self._linear
        first, last = _stretch(linear.key_heads, self.rank, self.ranks, linear.key_dim)
        keys = linear.key_heads * linear.key_dim
        values = tuple((2 * keys + a, 2 * keys + b) for a, b in self._value_rows(linear.value_dim))
        return ((first, last), (keys + first, keys + last), *values)

    def _value_rows(self, width: int) -> Ranges:
        """This rank's value heads, `width` rows each, in the files' order."""
        linear = self._linear
        first, last = _stretch(linear.value_heads, self.rank, self.ranks, 1)
        if not linear.tiled_value_heads:
            return ((first * width, last * width),)
        ratio = linear.value_heads // linear.key_heads
        # Head h of the files uses key head h % key_heads; sorted, so that the same holds for the rank's own heads.
        stored = sorted(h % ratio * linear.key_heads + h // ratio for h in range(first, last))
        return tuple((h * width, (h + 1) * width) for h in stored)


def _stretch(count: int, rank: int, ranks: int, width: int) -> tuple[int, int]:
    """The rank's part of `count` things of `width`; the same one for several ranks where they are fewer."""
    if count < ranks:
        place = rank * count // ranks
        return place * width, (place + 1) * width
    return rank * count // ranks * width, (rank + 1) * count // ranks * width


def _local(config: ModelConfig, ranks: int) -> ModelConfig:
    linear = config.linear
    if linear is not None:
        linear = msgspec.structs.replace(
            linear,
            key_heads=max(1, linear.key_heads // ranks),
            value_heads=linear.value_heads // ranks,
        )
    return msgspec.structs.replace(
        config,
        num_heads=config.num_heads // ranks,
        num_kv_heads=max(1, config.num_kv_heads // ranks),
        intermediate_size=config.intermediate_size // ranks,
        linear=linear,
    )
