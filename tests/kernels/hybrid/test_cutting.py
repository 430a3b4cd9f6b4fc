"""A sequence's cache: where it can be cut, and what a failed pass leaves."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from neuron.kernels.decoder.model import DecoderModel
from neuron.kernels.engine import DeviceModel
from tests.kernels.decoder.tiny import load, run, some_ids
from tests.kernels.hybrid.tiny import tiny_hybrid
from tests.kernels.layered import ranks as layered

pytestmark = pytest.mark.timeout(600)  # the first one may have to compile

IDS, OTHER = some_ids(120), some_ids(40, 9)


@pytest.fixture
def model(tmp_path: Path) -> Iterator[DecoderModel]:
    tiny_hybrid(tmp_path)
    loaded = load(tmp_path)
    assert isinstance(loaded, DecoderModel)
    yield loaded
    loaded.close()


def _go_on(model: DeviceModel, ids: np.ndarray[tuple[int], np.dtype[np.int32]], held: int) -> np.ndarray:
    logits = np.zeros(model.vocab_size, dtype=np.float32)
    model.forward(0, ids, held, logits)
    return logits


def test_a_recurrent_state_cannot_be_cut_in_the_middle(model: DecoderModel) -> None:
    fresh = run(model, OTHER, 40)
    run(model, IDS, 120)
    assert model.clear(0, keep=120) == 120
    assert model.clear(0, keep=119) == 0
    assert model.length(0) == 0
    np.testing.assert_array_equal(_go_on(model, OTHER, 0), fresh)


@pytest.mark.parametrize("engine", ["compiled", "layered"])
def test_a_hybrid_without_linear_layers_is_cut_and_put_together_like_any_other(engine: str, tmp_path: Path) -> None:
    tiny_hybrid(tmp_path, layer_types=["full_attention"] * 2)
    model = load(tmp_path) if engine == "compiled" else layered.load(tmp_path)
    assert model.memory.state == 0
    fresh = run(model, np.concatenate([IDS[:70], OTHER]), 110)
    run(model, IDS, 120)
    model.save_rows(0, 1, 0, 70)
    assert model.clear(0, keep=70) == 70
    np.testing.assert_allclose(_go_on(model, OTHER, 70), fresh, atol=1e-5)
    model.clear(0)
    assert model.restore_prefix(0, 0, (1,), 0) == 70
    np.testing.assert_allclose(_go_on(model, OTHER, 70), fresh, atol=1e-5)
    model.close()


@pytest.mark.parametrize("count", [5, 80])
def test_a_pass_that_fails_half_way_empties_the_sequence(
    model: DecoderModel, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = run(model, IDS, 120)
    run(model, IDS[:40], 40)
    with monkeypatch.context() as patch:
        patch.setattr(model, "_splits", lambda n, length: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            _go_on(model, OTHER[:count], 40)
    assert model.length(0) == 0
    np.testing.assert_array_equal(run(model, IDS, 120), fresh)
