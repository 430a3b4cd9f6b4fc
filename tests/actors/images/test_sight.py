"""Which models see, told from files alone: capabilities, preflight's memory, a tower that is not there."""

import json
from pathlib import Path

import msgspec
import pytest

from neuron.actors.errors import ModelNotFound
from neuron.actors.images.sight import with_capability
from neuron.actors.loading import Loader
from neuron.actors.settings import Settings, SourceKind, SourceSettings
from neuron.actors.sources.budget import IMAGE_PIXELS, make_budget, workspace_bytes
from neuron.actors.sources.description import describe_dense
from neuron.kernels.formats.errors import FormatKind
from neuron.kernels.formats.mapped_file import read_header
from neuron.kernels.formats.safetensors_header import parse_safetensors_header
from ops.tiny_vision.vocabulary import TARGET

CONFIG = (TARGET / "config.json").read_bytes()


def headers() -> dict[str, object]:
    return dict(read_header(TARGET / "model.safetensors", FormatKind.CORRUPT_WEIGHTS, parse_safetensors_header))


def test_the_tower_is_part_of_the_budget() -> None:
    seeing = describe_dense(CONFIG, [headers()], None, None)  # type: ignore[list-item]
    text = {name: tensor for name, tensor in headers().items() if "visual" not in name}
    blind = describe_dense(CONFIG, [text], None, None)  # type: ignore[list-item]
    assert seeing.config.vision is not None
    assert blind.config.vision is None
    assert seeing.matrix_bytes == blind.matrix_bytes
    file_bytes = (TARGET / "model.safetensors").stat().st_size
    tower = seeing.vector_bytes - blind.vector_bytes
    # Stored in bfloat16; a model as small as this one is held in float32.
    held_bytes = 2 * file_bytes
    assert 0 < tower < held_bytes
    assert abs(seeing.matrix_bytes + tower - held_bytes) < 0.05 * held_bytes
    assert not seeing.notes
    budget = make_budget(seeing.config, matrix_bytes=1, vector_bytes=1, context_length=1)
    assert budget.workspace_bytes > workspace_bytes(msgspec.structs.replace(seeing.config, vision=None))
    assert IMAGE_PIXELS == 1 << 20


def test_capabilities_of_local_files(tmp_path: Path) -> None:
    for name, changes in (("sees", {}), ("text", {"language_model_only": True})):
        folder = tmp_path / "org" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({**json.loads(CONFIG), **changes}))
        (folder / "model.safetensors").write_bytes(b"")
    (tmp_path / "org" / "empty").mkdir()
    loader = Loader(Settings(sources={"local": SourceSettings(kind=SourceKind.DIRECTORY, path=tmp_path)}))
    assert loader.local_capabilities("local:org/sees") == ("text", "vision")
    assert loader.local_capabilities("local:org/text") == ("text",)
    with pytest.raises(ModelNotFound):
        loader.local_capabilities("local:org/empty")


def test_the_capability_follows_from_what_is_there() -> None:
    assert with_capability(("text", "vision"), None) == ("text",)
