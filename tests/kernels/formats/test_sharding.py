"""The arithmetic of cuts: nothing left out, nothing twice but what is repeated by design, heads with their own keys."""

from collections import Counter
from typing import Any

import msgspec
import pytest

from neuron.kernels.formats.model_config import ModelConfig
from neuron.kernels.formats.sharding import Ranges, Sharding, fitting_ranks, indivisible
from neuron.kernels.warm import tiny_model_config

BASE = msgspec.structs.replace(tiny_model_config(), num_heads=8, num_kv_heads=4, intermediate_size=96)


def config(**linear: Any) -> ModelConfig:
    assert BASE.linear is not None
    shape = {"key_heads": 4, "value_heads": 16, "key_dim": 16, "value_dim": 8, **linear}
    return msgspec.structs.replace(BASE, linear=msgspec.structs.replace(BASE.linear, **shape))


def numbers(ranges: Ranges | None) -> list[int]:
    assert ranges is not None
    return [number for begin, end in ranges for number in range(begin, end)]


ROWS = ("q", "gate", "up", "linear_z", "linear_a", "linear_b", "linear_decay", "linear_dt_bias", "gate_bias", "q_bias")


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("role", [*ROWS, "k", "v", "linear_qkv", "linear_conv"])
def test_rows_are_each_held_once(role: str, ranks: int, tiled: bool) -> None:
    shape = config(tiled_value_heads=tiled)
    held = [number for rank in range(ranks) for number in numbers(Sharding(shape, rank, ranks).rows(role))]
    assert sorted(held) == list(range(len(held)))


@pytest.mark.parametrize("role", ["o", "down", "linear_out"])
def test_columns_are_each_held_once(role: str) -> None:
    shape = config(tiled_value_heads=True)
    cuts = [Sharding(shape, rank, 4).matrix(role) for rank in range(4)]
    assert all(cut.rows is None for cut in cuts)
    held = [number for cut in cuts for number in numbers(cut.cols)]
    assert sorted(held) == list(range(len(held)))


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_value_heads_lie_with_the_key_heads_that_they_use(ranks: int, tiled: bool) -> None:
    """Also where key heads are fewer than ranks, so that several ranks hold the same one."""
    shape = msgspec.structs.replace(config(tiled_value_heads=tiled), num_heads=16)
    assert shape.linear is not None
    keys, heads = shape.linear.key_heads, shape.linear.value_heads
    for rank in range(ranks):
        sharding = Sharding(shape, rank, ranks)
        own = sharding.config.linear
        assert own is not None
        stored = numbers(sharding.rows("linear_a"))
        channels = numbers(sharding.rows("linear_qkv"))
        held_keys = sorted({channel // 16 for channel in channels if channel < keys * 16})
        assert len(stored) == own.value_heads
        assert len(held_keys) == own.key_heads
        for place, head in enumerate(stored):
            used = head % keys if tiled else head // (heads // keys)
            local = place % own.key_heads if tiled else place // (own.value_heads // own.key_heads)
            assert held_keys[local] == used
        assert channels[: own.key_heads * 16] == [key * 16 + i for key in held_keys for i in range(16)]
        values = [channel - 2 * keys * 16 for channel in channels if channel >= 2 * keys * 16]
        assert values == [head * 8 + i for head in stored for i in range(8)]


def test_key_value_heads_fewer_than_ranks_are_repeated_for_their_own_queries() -> None:
    shape = msgspec.structs.replace(BASE, num_kv_heads=2, linear=None)
    assert indivisible(shape, 8) is None
    held: Counter[int] = Counter()
    for rank in range(8):
        sharding = Sharding(shape, rank, 8)
        query, key = numbers(sharding.rows("k"))[0] // 16, numbers(sharding.rows("v"))[0] // 16
        assert query == key == (rank * 8 // 8) // 4
        assert sharding.config.num_kv_heads == 1
        held[key] += 1
    assert held == {0: 4, 1: 4}


def test_the_gate_is_cut_with_its_query() -> None:
    assert BASE.attn_output_gate
    assert Sharding(BASE, 1, 4).rows("q") == ((64, 128),)
    plain = msgspec.structs.replace(BASE, attn_output_gate=False)
    assert Sharding(plain, 1, 4).rows("q") == ((32, 64),)


def test_what_does_not_divide_is_named_with_the_nearest_that_does() -> None:
    assert indivisible(config(), 3) == ("query heads", 8)
    assert indivisible(msgspec.structs.replace(config(), intermediate_size=98), 4) == ("intermediate rows", 98)
    assert indivisible(config(key_heads=3, value_heads=12), 4) == ("linear key heads", 3)
    assert indivisible(config(value_heads=12), 8) == ("linear value heads", 12)
    assert indivisible(msgspec.structs.replace(config(), num_heads=9, num_kv_heads=9), 6) == ("query heads", 9)
    assert fitting_ranks(config(), 7) == 4
    assert fitting_ranks(msgspec.structs.replace(config(), num_heads=7), 4) == 1


@pytest.mark.parametrize(("rows", "ranks"), [(97, 4), (8, 4), (5, 4), (248_320, 3)])
def test_the_vocabulary_is_cut_into_equal_widths_of_which_the_last_may_lack(rows: int, ranks: int) -> None:
    held: list[int] = []
    for rank in range(ranks):
        first, last, width = Sharding(BASE, rank, ranks).vocabulary(rows)
        assert 0 <= last - first <= width
        # Gathered side by side, row r of the head lies in column r.
        assert first == min(rows, rank * width)
        held += range(first, last)
    assert held == list(range(rows))


def test_one_rank_holds_everything_as_it_is() -> None:
    sharding = Sharding(BASE, 0, 1)
    assert sharding.config == BASE
    assert sharding.rows("q") is None
    assert sharding.matrix("down").cols is None
