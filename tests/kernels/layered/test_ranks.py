"""Two and four ranks, threads of this process: the same logits, whatever is split, repeated or left over."""

from pathlib import Path

import numpy as np
import pytest

from neuron.kernels.errors import IndivisibleShard, LoadError
from tests.kernels.decoder.tiny import run, some_ids
from tests.kernels.hybrid.converted import write
from tests.kernels.layered.families import LENGTHS, MODELS, check_lengths, check_steps, make, wanted
from tests.kernels.layered.ranks import RankedModel, ThreadGroup, ThreadRanks, load

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_ranks_give_the_logits_of_transformers(name: str, ranks: int, tmp_path: Path) -> None:
    """The vocabulary of 97 leaves the last rank short; other ranks than the first leave their logits alone."""
    rows = wanted(make(tmp_path, name), some_ids(max(LENGTHS)))
    model = RankedModel(tmp_path, ranks)
    check_lengths(model, rows)
    check_steps(model, rows, 66)
    model.close()


def test_a_rank_holds_its_part(tmp_path: Path) -> None:
    make(tmp_path, "hybrid")
    alone, shared = load(tmp_path), RankedModel(tmp_path, 4)
    for rank, model in enumerate(shared.ranks):
        assert f"rank {rank} of 4" in model.summary
        assert model.memory.weights < 0.45 * alone.memory.weights
        # Two key-value heads and two key heads for four ranks: each is held twice.
        assert model.memory.kv_per_token * 2 == alone.memory.kv_per_token
        assert model.memory.state * 4 < 1.2 * alone.memory.state
    shared.close()
    alone.close()


@pytest.mark.parametrize("ranks", [2, 4])
def test_tiled_value_heads_of_gguf_are_shared_out(ranks: int, tmp_path: Path) -> None:
    original = make(tmp_path / "original", "hybrid")
    rows = wanted(original, some_ids(70))
    write(original, tmp_path / "tiled.gguf")
    model = RankedModel(tmp_path, ranks, quant=None)
    for chunk in (70, 7):
        np.testing.assert_allclose(run(model, some_ids(70), chunk), rows[-1], atol=1e-4, rtol=0)
    model.close()


@pytest.mark.parametrize("name", ["llama", "hybrid"])
def test_prefixes_are_kept_and_put_together_on_every_rank(name: str, tmp_path: Path) -> None:
    rows = wanted(make(tmp_path, name), some_ids(60))
    hybrid = name == "hybrid"
    model = RankedModel(tmp_path, 2)
    ids, logits = some_ids(60), np.zeros(model.vocab_size, dtype=np.float32)
    model.forward(0, ids[:40], 0, None)
    assert model.call("save_rows", 0, 1, 0, 24) > 0
    assert model.call("save_rows", 0, 2, 24, 40) > 0
    if hybrid:
        assert model.call("save_state", 0, 3) > 0
    model.clear(0)
    run(model, some_ids(50, 7), 50)
    model.clear(0)
    assert model.call("restore_prefix", 4, 0, [1, 2], 3 if hybrid else 0) == 40
    model.forward(4, ids[40:], 40, logits)
    np.testing.assert_allclose(logits, rows[-1], atol=1e-4, rtol=0)
    with pytest.raises(ValueError, match=r"another kind|no recurrent state"):
        _ = model.call("restore_prefix", 5, 0, [1], 0) if hybrid else model.call("save_state", 4, 9)
    assert model.clear(4, keep=50) == (0 if hybrid else 50)
    assert model.call("drop_blocks", [1, 2, 3, 77]) > 0
    model.close()


def test_a_cut_sequence_goes_on_as_if_the_rest_had_never_been(tmp_path: Path) -> None:
    expected = make(tmp_path, "llama")
    model = RankedModel(tmp_path, 2)
    run(model, some_ids(100), 100)
    assert model.clear(0, keep=30) == 30
    ids = np.concatenate([some_ids(100)[:30], some_ids(20, 9)])
    logits = np.zeros(model.vocab_size, dtype=np.float32)
    model.forward(0, ids[30:], 30, logits)
    np.testing.assert_allclose(logits, wanted(expected, ids)[-1], atol=1e-4, rtol=0)
    model.close()


def test_what_every_rank_refuses_leaves_the_group_whole(tmp_path: Path) -> None:
    make(tmp_path, "qwen3")
    model = RankedModel(tmp_path, 2)
    ids = some_ids(12)
    first = run(model, ids, 12)
    with pytest.raises(ValueError, match="position"):
        model.forward(0, ids[:1], 5, None)
    np.testing.assert_array_equal(run(model, ids, 12), first)
    model.close()


def test_heads_that_do_not_divide_are_a_typed_error(tmp_path: Path) -> None:
    make(tmp_path, "hybrid")
    with pytest.raises(IndivisibleShard, match="query heads") as caught:
        load(tmp_path, rank=0, group=ThreadGroup(ThreadRanks(3), 0))
    assert caught.value.code == "indivisible_heads"


def test_a_rank_without_its_group_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "llama")
    with pytest.raises(LoadError, match="not in such a group"):
        load(tmp_path, rank=1, group=ThreadGroup(ThreadRanks(2), 0))
