"""A sequence's cache: cutting, checkpoints and the way back, and what a failed pass leaves."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from neuron.kernels.decoder.model import DecoderModel
from tests.kernels.decoder.tiny import load, run, some_ids, tiny
from tests.kernels.hybrid.tiny import tiny_hybrid

pytestmark = pytest.mark.timeout(600)  # the first one may have to compile

IDS, OTHER = some_ids(120), some_ids(40, 9)


@pytest.fixture
def model(tmp_path: Path) -> Iterator[DecoderModel]:
    tiny_hybrid(tmp_path)
    loaded = load(tmp_path)
    assert isinstance(loaded, DecoderModel)
    yield loaded
    loaded.close()


def _go_on(model: DecoderModel, ids: np.ndarray[tuple[int], np.dtype[np.int32]]) -> np.ndarray:
    logits = np.zeros(model.vocab_size, dtype=np.float32)
    model.forward(0, ids, model.length(0), logits)
    return logits


def test_going_back_and_on_equals_a_fresh_run(model: DecoderModel) -> None:
    fresh = run(model, np.concatenate([IDS[:70], OTHER]), 70)
    run(model, IDS[:70], 70)
    checkpoint = model.checkpoint(0)
    _go_on(model, IDS[70:])
    assert model.restore(0, checkpoint) == 70
    assert model.length(0) == 70
    np.testing.assert_array_equal(_go_on(model, OTHER), fresh)
    assert model.restore(0, checkpoint) == 70
    np.testing.assert_array_equal(_go_on(model, OTHER), fresh)


def test_a_checkpoint_is_a_copy_of_known_size(model: DecoderModel) -> None:
    run(model, IDS[:70], 70)
    checkpoint = model.checkpoint(0)
    assert checkpoint.state is not None
    before = checkpoint.state.copy()
    _go_on(model, OTHER)
    np.testing.assert_array_equal(checkpoint.state, before)
    assert model.memory.state <= checkpoint.nbytes <= model.memory.state + 4 * 64


def test_a_checkpoint_does_not_outlive_its_text(model: DecoderModel) -> None:
    run(model, IDS[:30], 30)
    early = model.checkpoint(0)
    _go_on(model, IDS[30:60])
    late = model.checkpoint(0)
    model.restore(0, early)
    _go_on(model, OTHER)
    with pytest.raises(ValueError, match="no longer holds"):
        model.restore(0, late)
    assert model.restore(0, early) == 30
    run(model, IDS, 120)
    with pytest.raises(ValueError, match="no longer holds"):
        model.restore(0, early)
    assert model.length(0) == 120


def test_a_recurrent_state_cannot_be_cut_in_the_middle(model: DecoderModel) -> None:
    fresh = run(model, OTHER, 40)
    run(model, IDS, 120)
    assert model.clear(0, keep=120) == 120
    assert model.clear(0, keep=119) == 0
    assert model.length(0) == 0
    np.testing.assert_array_equal(_go_on(model, OTHER), fresh)


@pytest.mark.parametrize("count", [5, 80])
def test_a_pass_that_fails_half_way_empties_the_sequence(
    model: DecoderModel, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = run(model, IDS, 120)
    run(model, IDS[:40], 40)
    with monkeypatch.context() as patch:
        patch.setattr(model, "_splits", lambda n, length: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            _go_on(model, OTHER[:count])
    assert model.length(0) == 0
    np.testing.assert_array_equal(run(model, IDS, 120), fresh)


def test_a_dense_model_has_checkpoints_without_a_state(tmp_path: Path) -> None:
    tiny(tmp_path, "Qwen3")
    model = load(tmp_path)
    assert isinstance(model, DecoderModel)
    fresh = run(model, np.concatenate([IDS[:70], OTHER]), 110)
    run(model, IDS[:70], 70)
    checkpoint = model.checkpoint(0)
    assert checkpoint.nbytes == 0
    _go_on(model, IDS[70:])
    assert model.restore(0, checkpoint) == 70
    np.testing.assert_allclose(_go_on(model, OTHER), fresh, atol=1e-4)
    assert model.clear(0, keep=20) == 20
    with pytest.raises(ValueError, match="no longer holds"):
        model.restore(0, checkpoint)
    model.close()
