"""mmproj files beside a GGUF: the numbers of the tower in safetensors, and a reason for each one that is of no use."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from neuron.actors.errors import CorruptWeights
from neuron.actors.images.sight import find_sight
from neuron.actors.settings import Settings, SourceKind, SourceSettings
from neuron.actors.sources.ids import parse_model_id
from neuron.actors.sources.preflight import preflight
from neuron.actors.sources.resolve import preflight_remote, resolve
from neuron.kernels.engine import LoadSpec
from neuron.kernels.formats.errors import FormatError
from neuron.kernels.formats.gguf import GgufFile
from neuron.kernels.formats.projector import read_projector
from neuron.kernels.load import load_model
from neuron.kernels.vision.model import VisionModel
from tests.kernels.decoder.tiny import load
from tests.kernels.vision.projector_files import write_projector, write_text
from tests.kernels.vision.test_model import Conversation, reference
from tests.kernels.vision.tiny import IMAGE_TOKEN, SCALE, tiny_vision

pytestmark = pytest.mark.timeout(300)
F32, F16, BF16, Q8_0 = (getattr(gguf.GGMLQuantizationType, name) for name in ("F32", "F16", "BF16", "Q8_0"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model")


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Any:
    return tiny_vision(folder)


@pytest.fixture(scope="module")
def text(folder: Path, oracle: Any) -> Path:
    return write_text(oracle, folder / "text.gguf")


@pytest.fixture
def talk() -> Conversation:
    return Conversation([5, 9, 7], [(4, 6), (2, 8)])


def loaded(text: Path, projector: Path) -> VisionModel:
    spec = LoadSpec("gguf", (text,), 256, projector=projector)
    model = load_model(spec, "cpu", lambda stage, fraction: None, threads=1)
    assert isinstance(model, VisionModel)
    return model


@pytest.fixture(scope="module")
def dense(folder: Path, oracle: Any) -> Iterator[Any]:
    model = load(folder)
    yield model
    model.close()


@pytest.mark.parametrize("chunk", [100, 7])
def test_logits_are_those_of_transformers(
    folder: Path, text: Path, oracle: Any, talk: Conversation, chunk: int
) -> None:
    model = loaded(text, write_projector(oracle, folder / f"mmproj-{chunk}.gguf"))
    _, rows = reference(oracle, talk)
    np.testing.assert_allclose(talk.run(model, chunk), rows[0], atol=1e-4, rtol=0)
    model.close()


@pytest.mark.parametrize(("stored", "within"), [(F32, 1e-5), (F16, 2e-2), (BF16, 1e-1), (Q8_0, 2e-1)])
def test_every_type_of_matrices_is_read(
    folder: Path, text: Path, oracle: Any, dense: Any, talk: Conversation, stored: Any, within: float
) -> None:
    model = loaded(text, write_projector(oracle, folder / f"mmproj-{stored.name}.gguf", stored=stored))
    difference = np.abs(talk.run(model, 100) - talk.run(dense, 100)).max()
    model.close()
    assert difference < within
    assert difference > 0 or stored is F32


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "ldp"}, "of the kind 'ldp' are not supported"),
        ({"stacked": True}, "deep stacking"),
        ({"without": "mm.2.bias"}, "Tensor mm.2.bias of the projector is missing"),
        ({"without": "v.patch_embd.weight.1"}, "v.patch_embd.weight.1"),
        ({"without": "v.position_embd.weight"}, "v.position_embd.weight"),
        ({"also": "v.class_embd"}, "'v.class_embd' of the projector is not known"),
    ],
)
def test_other_projectors_are_refused(tmp_path: Path, oracle: Any, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(FormatError) as caught:
        read_projector(GgufFile.open(write_projector(oracle, tmp_path / "mmproj.gguf", **changes)))
    assert said in caught.value.message.replace('"', "'")


def repository(root: Path) -> Settings:
    (root / "org" / "seeing").mkdir(parents=True)
    return Settings(sources={"here": SourceSettings(kind=SourceKind.DIRECTORY, path=root)})


@pytest.mark.anyio
async def test_a_source_brings_the_projector_along(tmp_path: Path, oracle: Any) -> None:
    settings = repository(tmp_path)
    place, name = tmp_path / "org" / "seeing", parse_model_id("here:org/seeing", settings)
    write_text(oracle, place / "model-F32.gguf")
    without = await preflight_remote(name, settings)
    assert without.config is not None
    assert without.config.vision is None
    write_projector(oracle, place / "mmproj-F16.gguf", stored=F16)
    artifact = await resolve(name, settings)
    assert artifact.projector is not None
    assert artifact.projector.name == "mmproj-F16.gguf"
    report = preflight(artifact)
    assert report.config is not None
    assert report.config.image_token_id == IMAGE_TOKEN
    assert report.budget is not None
    assert without.budget is not None
    assert report.budget.weights_bytes > without.budget.weights_bytes
    sight = find_sight(artifact, report.config, None)  # type: ignore[arg-type]
    assert sight is not None
    assert sight.pad == IMAGE_TOKEN
    np.testing.assert_allclose(sight.processor.mean, SCALE.mean, atol=1e-6)
    np.testing.assert_allclose(sight.processor.std, SCALE.std, atol=1e-6)


@pytest.mark.anyio
@pytest.mark.parametrize("pad", [True, False])
async def test_one_of_no_use_is_noted_and_left(tmp_path: Path, oracle: Any, pad: bool) -> None:
    settings = repository(tmp_path)
    place, name = tmp_path / "org" / "seeing", parse_model_id("here:org/seeing", settings)
    write_text(oracle, place / "model-F32.gguf", pad=pad)
    write_projector(oracle, place / "mmproj-F16.gguf", kind="ldp" if pad else gguf.VisionProjectorType.QWEN3VL)
    artifact = await resolve(name, settings)
    assert artifact.projector is None
    report = await preflight_remote(name, settings)
    assert any("Images are not taken" in note for note in report.notes)


@pytest.mark.anyio
async def test_a_damaged_one_is_refused(tmp_path: Path, oracle: Any) -> None:
    settings = repository(tmp_path)
    place, name = tmp_path / "org" / "seeing", parse_model_id("here:org/seeing", settings)
    write_text(oracle, place / "model-F32.gguf")
    write_projector(oracle, place / "mmproj-F32.gguf", without="mm.0.weight")
    with pytest.raises(CorruptWeights, match=r"mm\.0\.weight"):
        await resolve(name, settings)
