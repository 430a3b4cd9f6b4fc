"""Images through the whole model against transformers in float32: M-RoPE, splicing, chunks that cut images, decode."""

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pytest
import torch

from neuron.actors.images.prompt import rope_positions
from neuron.kernels.engine import PixelScale, Span
from neuron.kernels.vision.model import VisionModel
from tests.kernels.decoder.tiny import Floats, load
from tests.kernels.vision.tiny import IMAGE_TOKEN, SCALE, patches_of, picture, pixel_values, tiny_vision

#: A first run compiles the step.
pytestmark = pytest.mark.timeout(300)
Ids = npt.NDArray[np.int32]
Patches = npt.NDArray[np.uint8]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model")


@pytest.fixture(scope="module")
def pair(folder: Path) -> Any:
    oracle = tiny_vision(folder)
    model = load(folder)
    yield oracle, model
    model.close()


class Sees(Protocol):
    """What a conversation needs of a model."""

    vocab_size: int

    @property
    def held_images(self) -> int: ...
    def clear(self, sequence: int, /) -> int: ...
    def encode_image(
        self, sequence: int, image: int, patches: Patches, grid: tuple[int, int, int], scale: PixelScale, /
    ) -> int: ...
    def forward_with_images(
        self,
        sequence: int,
        tokens: Ids,
        position: int,
        logits: Floats | None,
        spans: tuple[Span, ...],
        positions: Ids,
        rope_delta: int,
        /,
    ) -> None: ...


class Conversation:
    """Token ids with images of the given grids between runs of text, and everything that follows from them."""

    def __init__(self, texts: list[int], grids: list[tuple[int, int]], seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.pixels = [picture(*grid, seed=seed + index) for index, grid in enumerate(grids)]
        self.grids = [(1, *grid) for grid in grids]
        parts: list[Ids] = []
        self.spans: list[tuple[int, int, int]] = []
        offset = 0
        for index, count in enumerate(texts):
            parts.append(rng.integers(3, IMAGE_TOKEN, count, dtype=np.int32))
            offset += count
            if index < len(grids):
                places = grids[index][0] * grids[index][1] // 4
                self.spans.append((100 + index, offset, places))
                parts.append(np.full(places, IMAGE_TOKEN, dtype=np.int32))
                offset += places
        self.ids: Ids = np.concatenate(parts)
        self.positions = rope_positions(
            len(self.ids), [(start, grid) for (_, start, _), grid in zip(self.spans, self.grids, strict=True)], merge=2
        )

    def encode(self, model: Sees, sequence: int = 0) -> None:
        for (image, _, places), pixels, grid in zip(self.spans, self.pixels, self.grids, strict=True):
            assert model.encode_image(sequence, image, patches_of(pixels), grid, SCALE) == places

    def run(self, model: Sees, chunk: int, sequence: int = 0) -> Floats:
        """Logits after the prompt, run in chunks."""
        logits = np.full(model.vocab_size, np.nan, dtype=np.float32)
        model.clear(sequence)
        self.encode(model, sequence)
        for begin in range(0, len(self.ids), chunk):
            end = min(begin + chunk, len(self.ids))
            delta = int(self.positions[:, :end].max()) + 1 - end
            spans = tuple(span for span in self.spans if span[1] < end and span[1] + span[2] > begin)
            model.forward_with_images(
                sequence,
                self.ids[begin:end],
                begin,
                logits if end == len(self.ids) else None,
                spans,
                self.positions[:, begin:end],
                delta,
            )
        assert model.held_images == 0
        return logits


def reference(oracle: Any, talk: Conversation, steps: int = 0) -> tuple[list[int], list[Floats]]:
    """Greedy continuation of `steps` tokens by transformers with its cache, and the logits before each."""
    ids = torch.from_numpy(talk.ids.astype(np.int64))[None]
    oracle.model.rope_deltas = None
    with torch.inference_mode():
        out = oracle(
            input_ids=ids,
            pixel_values=torch.cat([pixel_values(pixels) for pixels in talk.pixels]),
            image_grid_thw=torch.tensor(talk.grids),
            mm_token_type_ids=(ids == IMAGE_TOKEN).int(),
            use_cache=True,
        )
        tokens, rows = [], [out.logits[0, -1].float().numpy()]
        cache = out.cache if hasattr(out, "cache") else out.past_key_values
        for _ in range(steps):
            tokens.append(int(rows[-1].argmax()))
            out = oracle(input_ids=torch.tensor([[tokens[-1]]]), cache=cache, use_cache=True)
            rows.append(out.logits[0, -1].float().numpy())
    return tokens, rows


TALKS = {
    "one image": Conversation([5, 9], [(6, 10)], seed=1),
    "an image first": Conversation([0, 4], [(2, 2)], seed=2),
    "two turns": Conversation([7, 30, 6], [(14, 4), (4, 6)], seed=3),
    "three images": Conversation([3, 2, 70, 11], [(2, 16), (8, 8), (6, 4)], seed=4),
}


@pytest.mark.parametrize("name", TALKS)
@pytest.mark.parametrize("chunk", [1000, 64, 7])
def test_prefill_equals_transformers(pair: Any, name: str, chunk: int) -> None:
    oracle, model = pair
    talk = TALKS[name]
    _, (wanted,) = reference(oracle, talk)
    assert np.abs(talk.run(model, chunk) - wanted).max() < 1e-4


@pytest.mark.parametrize("name", ["one image", "two turns"])
def test_one_by_one_equals_transformers(pair: Any, name: str) -> None:
    oracle, model = pair
    talk = TALKS[name]
    _, (wanted,) = reference(oracle, talk)
    assert np.abs(talk.run(model, 1) - wanted).max() < 1e-4


@pytest.mark.parametrize("name", TALKS)
def test_twenty_steps_after_the_prompt(pair: Any, name: str) -> None:
    """Decode keeps the delta between places and rotary positions."""
    oracle, model = pair
    talk = TALKS[name]
    tokens, wanted = reference(oracle, talk, steps=20)
    logits = talk.run(model, 32)
    for index, token in enumerate(tokens):
        assert int(logits.argmax()) == token
        model.forward(0, np.array([token], dtype=np.int32), len(talk.ids) + index, logits)
        assert np.abs(logits - wanted[index + 1]).max() < 1e-4


def test_a_second_turn_on_top_of_the_first(pair: Any) -> None:
    """Prompt, answer, then more text and another image: the same as the whole in one piece."""
    oracle, model = pair
    whole = TALKS["two turns"]
    _, (wanted,) = reference(oracle, whole)
    logits = np.empty(model.vocab_size, dtype=np.float32)
    model.clear(3)
    whole.encode(model, 3)
    cut = 30
    for begin, end in ((0, cut), (cut, len(whole.ids))):
        spans = tuple(span for span in whole.spans if span[1] < end and span[1] + span[2] > begin)
        delta = int(whole.positions[:, :end].max()) + 1 - end
        part = whole.positions[:, begin:end]
        model.forward_with_images(3, whole.ids[begin:end], begin, logits, spans, part, delta)
    assert np.abs(logits - wanted).max() < 1e-4


def test_mutations_are_noticed(pair: Any) -> None:
    """Text positions, a forgotten delta, swapped axes, and images the other way round."""
    oracle, model = pair
    talk = Conversation([7, 9, 6], [(6, 10), (10, 6)], seed=5)
    tokens, wanted = reference(oracle, talk, steps=1)
    assert np.abs(talk.run(model, 1000) - wanted[0]).max() < 1e-4
    positions, spans = talk.positions, talk.spans
    flat = np.broadcast_to(np.arange(len(talk.ids), dtype=np.int32), positions.shape)
    for wrong in (flat, positions[[0, 2, 1]]):
        talk.positions = wrong
        assert np.abs(talk.run(model, 1000) - wanted[0]).max() > 1e-3
    talk.positions = positions
    (first, *place), (second, *other) = spans
    talk.spans = [(second, *place), (first, *other)]  # type: ignore[list-item]
    assert np.abs(_swapped(model, talk) - wanted[0]).max() > 1e-3
    talk.spans = spans
    logits = talk.run(model, 1000)
    cache = model._sequences[0]
    cache.set_rope_delta(0)
    model.forward(0, np.array(tokens[:1], dtype=np.int32), len(talk.ids), logits)
    assert np.abs(logits - wanted[1]).max() > 1e-3


def _swapped(model: VisionModel, talk: Conversation) -> Floats:
    """Two images of equal many places, each in the other's."""
    model.clear(0)
    logits = np.empty(model.vocab_size, dtype=np.float32)
    for (image, _, _), pixels, grid in zip(talk.spans[::-1], talk.pixels, talk.grids, strict=True):
        model.encode_image(0, image, patches_of(pixels), grid, SCALE)
    delta = int(talk.positions.max()) + 1 - len(talk.ids)
    model.forward_with_images(0, talk.ids, 0, logits, tuple(talk.spans), talk.positions, delta)
    return logits


def test_nothing_of_an_image_is_left_for_the_next_prompt(pair: Any) -> None:
    _, model = pair
    text = np.arange(3, 40, dtype=np.int32)
    before, after = (np.empty(model.vocab_size, dtype=np.float32) for _ in range(2))
    model.clear(0)
    model.forward(0, text, 0, before)
    talk = TALKS["two turns"]
    talk.run(model, 16)
    talk.encode(model)
    model.clear(0)
    assert model.held_images == 0
    model.forward(0, text, 0, after)
    assert np.array_equal(before, after)


def test_images_of_one_sequence_are_not_another_s(pair: Any) -> None:
    _, model = pair
    talk = TALKS["one image"]
    talk.run(model, 1000, sequence=1)
    model.clear(1)
    model.clear(2)
    talk.encode(model, sequence=1)
    arguments = (talk.ids, 0, None, tuple(talk.spans), talk.positions, 0)
    with pytest.raises(ValueError, match="not encoded for sequence 2"):
        model.forward_with_images(2, *arguments)
    (image, offset, places), *_ = talk.spans
    with pytest.raises(ValueError, match="not encoded"):
        model.forward_with_images(1, talk.ids, 0, None, ((image, offset, places - 1),), talk.positions, 0)
    with pytest.raises(ValueError, match="rotary positions"):
        model.forward_with_images(1, talk.ids, 0, None, tuple(talk.spans), talk.positions[:, 1:], 0)
    assert model.length(1) == 0
    model.clear(1)
    assert model.held_images == 0
