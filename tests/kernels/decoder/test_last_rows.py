"""Of the last layer's results prefill computes only those that somebody reads: one row, or none without logits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuron.kernels.decoder.model import DecoderModel
from neuron.kernels.decoder.products import Products
from neuron.kernels.weights.matrix import Matrix
from tests.kernels.decoder.tiny import load, reference, some_ids, tiny
from tests.kernels.hybrid import tiny as hybrid

pytestmark = pytest.mark.timeout(300)

#: What keys, values and states are made of.
WRITTEN = {"k", "v", "linear_qkv", "linear_z", "linear_a", "linear_b"}


class Recorder:
    """Products that note how many rows each matrix was multiplied with."""

    def __init__(self, products: Products) -> None:
        self._products = products
        self.rows: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._products, name)

        def noted(x: Any, *arguments: Any) -> None:
            for matrix in (argument for argument in arguments if isinstance(argument, Matrix)):
                self.rows[matrix.address] = len(x)
            function(x, *arguments)

        return noted


@pytest.mark.parametrize("family", ["Llama", "hybrid"])
def test_rows_of_every_product(family: str, tmp_path: Path) -> None:
    oracle = hybrid.tiny_hybrid(tmp_path) if family == "hybrid" else tiny(tmp_path, family)
    expected = (hybrid.reference if family == "hybrid" else reference)(oracle, some_ids(90))[-1]
    model = load(tmp_path)
    assert isinstance(model, DecoderModel)
    recorder = Recorder(model._prefill._products)
    model._prefill._products = recorder
    assert model._weights is not None
    *inner, last = model._weights.layers
    ids, logits = some_ids(90), np.zeros(model.vocab_size, dtype=np.float32)

    model.forward(0, ids[:40], 0, None)
    assert {recorder.rows[matrix.address] for layer in inner for matrix in layer.matrices.values()} == {40}
    written = {matrix.address for role, matrix in last.matrices.items() if role in WRITTEN}
    assert {recorder.rows[address] for address in written} == {40}
    others = {matrix.address for matrix in last.matrices.values()} - written
    assert {recorder.rows.get(address, 0) for address in others} == {0}

    recorder.rows.clear()
    model.forward(0, ids[40:], 40, logits)
    assert {recorder.rows[matrix.address] for layer in inner for matrix in layer.matrices.values()} == {50}
    assert {recorder.rows[address] for address in written} == {50}
    assert {recorder.rows[address] for address in others} == {1}
    np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=0)
    model.close()
