"""Nothing is read before it is written, and nothing behind its end: memory full of NaN changes no answer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from neuron.kernels.decoder.model import DecoderModel
from tests.kernels.decoder.tiny import Floats, load, some_ids, tiny
from tests.kernels.hybrid.tiny import tiny_hybrid

#: Rows of one and a half chunks of activations, and of whole superblocks.
SIZES = {"q4_1": (96, 160), "q5_0": (96, 160), "q8_0": (96, 160), "q4_k": (256, 512), "q6_k": (256, 512)}
QUANTS = (None, "f32", *SIZES)
#: Tokens of each call: both paths, one token with its attention split over threads, chunks of a linear layer.
CALLS = (1, 2, 16, 17, 40, 1, 130, 1, 3)


@pytest.fixture
def uninitialised_is_nan(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What numpy and torch hand out as it is holds NaN."""
    original = np.empty

    def filled(*args: Any, **options: Any) -> npt.NDArray[Any]:
        array: npt.NDArray[Any] = original(*args, **options)
        if array.dtype.hasobject:
            return array
        array.view(np.uint8).fill(0xFF) if array.flags.c_contiguous and array.ndim else None
        return array

    monkeypatch.setattr(np, "empty", filled)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


def poison(model: DecoderModel) -> None:
    """Fill every buffer that is kept between calls, and the cache behind what it holds."""
    for block in model._workspace.arena._held.values():
        block[:] = 0xFF
    for owner in (model._prefill, model._prefill._linear):
        for value in vars(owner).values() if owner is not None else ():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                value.fill_(torch.nan)
    for cache in model._sequences.values():
        cache.kv.rows[..., cache.length :, :] = np.nan if cache.kv.rows.dtype != np.uint16 else 0xFFFF


def answers(model: DecoderModel, *, poisoned: bool) -> list[Floats]:
    """Logits after each of CALLS."""
    ids, position, found = some_ids(sum(CALLS)), 0, []
    for count in CALLS:
        if poisoned:
            poison(model)
        logits = np.full(model.vocab_size, np.nan, dtype=np.float32)
        model.forward(0, ids[position : position + count], position, logits)
        position += count
        found.append(logits)
    model.clear(0)
    return found


def made(folder: Path, family: str, quant: str | None) -> None:
    hidden, inner = SIZES.get(quant or "", (96, 160))
    sizes: dict[str, Any] = {"hidden_size": hidden, "intermediate_size": inner}
    if family == "hybrid":
        # The heads' outputs together are as wide as blocks are long.
        tiny_hybrid(folder, **sizes, linear_num_value_heads=4, linear_value_head_dim=64)
    else:
        tiny(folder, family, **sizes)


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3", "hybrid"])
@pytest.mark.parametrize("quant", QUANTS)
def test_no_answer_depends_on_what_was_in_memory(
    family: str, quant: str | None, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    made(tmp_path, family, quant)
    model = load(tmp_path, quant=quant)
    assert isinstance(model, DecoderModel)
    wanted = answers(model, poisoned=False)
    model.close()
    assert all(np.isfinite(logits).all() for logits in wanted)
    request.getfixturevalue("uninitialised_is_nan")
    model = load(tmp_path, quant=quant)
    assert isinstance(model, DecoderModel)
    found = answers(model, poisoned=True)
    model.close()
    for number, (one, other) in enumerate(zip(wanted, found, strict=True)):
        np.testing.assert_array_equal(one, other, err_msg=f"call {number}")
