"""The hub source against a server that speaks the hub's protocol: what is fetched, from where, with which secret."""

import errno
import threading
from pathlib import Path
from typing import Any

import anyio
import huggingface_hub.constants
import msgspec
import pytest

from neuron.actors.settings import Settings, SourceKind, SourceSettings
from neuron.actors.sources.artifact import Format
from neuron.actors.sources.hub import HubRepository
from neuron.actors.sources.ids import parse_model_id
from neuron.actors.sources.resolve import resolve
from tests.actors.sources.hub_models import (
    CONFIG,
    dense_repo,
    get,
    look,
    refused,
    sharded_repo,
)
from tests.actors.sources.hub_server import Hub, Repo, running_hub
from tests.kernels.formats import models
from tests.kernels.formats.safetensors_files import from_arrays


def test_only_what_is_needed_is_fetched(hub: Hub, settings: Settings) -> None:
    repo = dense_repo(generation_config__json=b"{}", tokenizer__json=b"{}")
    repo.files |= {"onnx/model.onnx": b"x" * 1000, "pytorch_model.bin": b"x" * 1000, "sub/m.safetensors": b"x"}
    hub.repos["org/name"] = repo
    artifact = get(settings)
    assert artifact.format is Format.SAFETENSORS
    assert (artifact.model_id, artifact.source_id) == ("org/name", "mirror:org/name")
    assert artifact.weight_files[0].read_bytes() == repo.files["model.safetensors"]
    assert (artifact.directory / "config.json").read_bytes() == CONFIG
    assert (artifact.directory / "tokenizer.json").is_file()
    for unwanted in ("README.md", "model.onnx", "pytorch_model.bin", "m.safetensors"):
        assert not [r for r in hub.requests if r.path.endswith(unwanted) and "sub" not in r.path]
    assert artifact.stored_quant == "f32"


def test_a_second_load_downloads_nothing(hub: Hub, settings: Settings) -> None:
    hub.repos["org/name"] = dense_repo()
    get(settings)
    hub.requests.clear()
    get(settings)
    assert [request.method for request in hub.requests] == ["GET"]
    assert hub.requests[0].path == "/api/models/org/name"


def test_the_report_reads_headers_only(hub: Hub, settings: Settings) -> None:
    hub.repos["org/name"] = sharded_repo()
    whole = sum(len(data) for name, data in hub.repos["org/name"].files.items() if name.endswith(".safetensors"))
    report = look(settings)
    assert report.architecture == "llama"
    assert report.budget is not None
    assert report.budget.weights_bytes == pytest.approx(whole, rel=0.01)
    ranged = [request for request in hub.requests if request.range is not None]
    assert {request.path.rpartition("/")[2] for request in ranged} == {
        f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)
    }
    assert all(request.range is not None for request in hub.asked(".safetensors"))


def test_header_reads_stop_where_ranges_are_not_understood(hub: Hub, settings: Settings) -> None:
    hub.ranges = False
    hub.repos["org/name"] = dense_repo()
    assert look(settings).architecture == "llama"


def test_sizes_come_with_the_tree_where_the_info_has_none(hub: Hub, settings: Settings) -> None:
    hub.sizes = False
    hub.repos["org/name"] = dense_repo()
    assert get(settings).weight_files[0].is_file()
    assert any("/tree/" in request.path for request in hub.requests)


def test_progress_is_told_on_the_loop(hub: Hub, settings: Settings) -> None:
    hub.repos["org/name"] = sharded_repo()
    seen: list[tuple[str, float]] = []
    get(settings, on_progress=lambda stage, fraction: seen.append((stage, fraction)))
    assert {stage for stage, _ in seen} == {"fetch"}
    fractions = [fraction for _, fraction in seen]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert len(fractions) > 3


def test_two_sources_with_the_same_name_share_nothing(
    hub: Hub, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIRROR_TOKEN", "mirror-secret")
    monkeypatch.setenv("HF_TOKEN", "hub-secret")
    with running_hub() as other:
        both = Settings(
            sources=settings.sources
            | {"other": SourceSettings(kind=SourceKind.HUB, endpoint=other.url, cache_dir=tmp_path / "other")}
        )
        one, two = dense_repo(), dense_repo()
        one.token = "mirror-secret"
        arrays = models.dense_arrays(models.LLAMA)
        arrays["model.norm.weight"] += 1
        two.files["model.safetensors"] = from_arrays(arrays)
        hub.repos["org/name"], other.repos["org/name"] = one, two
        first, second = get(both, "mirror:org/name"), get(both, "other:org/name")
        assert first.weight_files[0].read_bytes() == one.files["model.safetensors"]
        assert second.weight_files[0].read_bytes() == two.files["model.safetensors"]
        assert first.directory != second.directory
        assert {request.authorization for request in hub.requests} == {"Bearer mirror-secret"}
        assert {request.authorization for request in other.requests} == {None}


def test_a_token_that_is_missing(hub: Hub, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos["org/name"] = dense_repo()
    hub.repos["org/name"].token = "secret"
    # The client's own stored token must not be sent in its place.
    monkeypatch.setenv("HF_TOKEN", "secret")
    error = refused("repo_fetch_failed", settings)
    assert error.extra["cause"] == "not found"
    assert {request.authorization for request in hub.requests} == {None}


def test_the_token_does_not_follow_to_storage(hub: Hub, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRROR_TOKEN", "secret")
    repo = sharded_repo()
    hub.repos["org/name"] = Repo(repo.files, token="secret")
    with running_hub({"org/name": repo}) as storage:
        # Another host by name; the same machine.
        hub.storage = storage.url.replace("127.0.0.1", "localhost")
        artifact = get(settings)
        assert artifact.weight_files[0].read_bytes() == repo.files["model-00001-of-00003.safetensors"]
        assert storage.sent(".safetensors") > sum(len(repo.files[path.name]) for path in artifact.weight_files)
        assert {request.authorization for request in storage.requests} == {None}
        assert {request.authorization for request in hub.requests} == {"Bearer secret"}


def test_unreachable_with_a_filled_cache(hub: Hub, settings: Settings) -> None:
    hub.repos["org/name"] = sharded_repo()
    online = get(settings)
    hub.fail = 503
    offline = get(settings)
    assert offline == online
    closed = msgspec.structs.replace(settings.sources["mirror"], endpoint="http://127.0.0.1:9")
    gone = Settings(sources={"mirror": closed}, default_source="mirror")
    assert get(gone) == online
    assert look(gone).architecture == "llama"


def test_unreachable_with_half_a_cache(hub: Hub, settings: Settings) -> None:
    hub.repos["org/name"] = sharded_repo()
    artifact = get(settings)
    artifact.weight_files[1].unlink()
    hub.fail = 500
    assert "model-00002-of-00003.safetensors" in refused("missing_shard", settings).message


def test_unreachable_without_a_cache(hub: Hub, settings: Settings) -> None:
    hub.fail = 503
    error = refused("repo_fetch_failed", settings)
    assert error.extra["cause"] == "unreachable"
    assert hub.url not in error.message


def test_a_full_disk(hub: Hub, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device", "/secret/place")

    hub.repos["org/name"] = dense_repo()
    monkeypatch.setattr("neuron.actors.sources.hub.hf_hub_download", full)
    assert "secret" not in refused("source_unreadable", settings).message


def test_a_server_that_refuses(hub: Hub, settings: Settings) -> None:
    hub.fail = 403
    assert refused("repo_fetch_failed", settings).extra["cause"] == "status 403"


def test_the_server_vanishes_between_listing_and_fetching(
    hub: Hub, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos["org/name"] = dense_repo()
    listing = HubRepository.files

    def then_down(repository: HubRepository) -> Any:
        names = listing(repository)
        hub.fail = 404
        return names

    monkeypatch.setattr(HubRepository, "files", then_down)
    refused("repo_fetch_failed", settings)


def test_code_in_a_repository_is_noted_and_not_run(hub: Hub, settings: Settings) -> None:
    hub.repos["org/name"] = dense_repo(
        config__json=models.config_json(models.LLAMA, auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"})
    )
    hub.repos["org/name"].files["modeling_evil.py"] = b"raise SystemExit"
    assert any("auto_map" in note for note in look(settings).notes)
    get(settings)
    assert hub.asked("modeling_evil.py") == []


def test_an_interrupted_download_resumes(hub: Hub, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    # The client keeps whole chunks of what came; smaller ones so that a small file has several.
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 64 << 10)
    hub.repos["org/name"] = sharded_repo()
    name = "model-00001-of-00003.safetensors"
    whole = hub.repos["org/name"].files[name]
    hub.cut[name] = len(whole) // 2
    assert get(settings).weight_files[0].read_bytes() == whole
    resumed = [r for r in hub.asked(name) if r.range is not None and not r.range.startswith("bytes=0-")]
    assert len(resumed) == 1
    assert resumed[0].sent < len(whole) - len(whole) // 2 + (64 << 10)


def test_a_load_that_is_given_up_stops_its_download(
    hub: Hub, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 16 << 10)
    hub.repos["org/name"] = sharded_repo()
    download, ended, received = huggingface_hub.hf_hub_download, threading.Event(), list[float]()

    def watched(model: str, name: str, **options: Any) -> str:
        try:
            return str(download(model, name, **options))
        finally:
            if name.endswith("1-of-00003.safetensors"):
                ended.set()

    monkeypatch.setattr("neuron.actors.sources.hub.hf_hub_download", watched)

    async def run() -> None:
        with anyio.CancelScope() as scope:

            def first(stage: str, fraction: float) -> None:
                received.append(fraction)
                scope.cancel()

            await resolve(parse_model_id("org/name", settings), settings, on_progress=first)
        assert scope.cancelled_caught

    anyio.run(run)
    assert ended.wait(10)
    assert received[-1] < 0.5
    assert get(settings).weight_files[0].read_bytes() == hub.repos["org/name"].files["model-00001-of-00003.safetensors"]
