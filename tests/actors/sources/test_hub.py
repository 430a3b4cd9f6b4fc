"""The hub source against a server that speaks the hub's protocol: what is fetched, from where, with which secret."""

import errno
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import huggingface_hub.constants
import msgspec
import numpy as np
import pytest

from neuron.actors.errors import PreflightError
from neuron.actors.settings import Settings, SourceKind, SourceSettings
from neuron.actors.sources.artifact import Format, ModelArtifact
from neuron.actors.sources.hub import HubRepository
from neuron.actors.sources.ids import parse_model_id
from neuron.actors.sources.preflight import PreflightReport
from neuron.actors.sources.resolve import preflight_remote, resolve
from tests.actors.sources.hub_server import Hub, Repo, running_hub
from tests.kernels.formats import models
from tests.kernels.formats.safetensors_files import from_arrays

CONFIG = models.config_json(models.LLAMA)
GEMMA = models.config_json(models.LLAMA, architectures=["GemmaForCausalLM"])
LARGE = models.LLAMA | {"vocab_size": 5_000, "hidden_size": 64}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as running:
        yield running


@pytest.fixture
def settings(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    source = SourceSettings(
        kind=SourceKind.HUB, endpoint=hub.url, auth_env="MIRROR_TOKEN", cache_dir=tmp_path / "mirror"
    )
    return Settings(sources={"mirror": source}, default_source="mirror")


def get(settings: Settings, text: str = "org/name", **asked: Any) -> ModelArtifact:
    async def run() -> ModelArtifact:
        return await resolve(parse_model_id(text, settings), settings, **asked)

    return anyio.run(run)


def look(settings: Settings, text: str = "org/name", **asked: Any) -> PreflightReport:
    async def run() -> PreflightReport:
        return await preflight_remote(parse_model_id(text, settings), settings, **asked)

    return anyio.run(run)


def refused(code: str, settings: Settings, text: str = "org/name", **asked: Any) -> PreflightError:
    with pytest.raises(PreflightError) as caught:
        get(settings, text, **asked)
    assert caught.value.code == code, caught.value.message
    assert caught.value.extra["kind"] == code
    return caught.value


def dense_repo(**more: bytes) -> Repo:
    files = {"config.json": CONFIG, "model.safetensors": models.dense_file(models.LLAMA), "README.md": b"hello"}
    return Repo(files | {name.replace("__", "."): data for name, data in more.items()})


def sharded_repo() -> Repo:
    arrays = models.dense_arrays(LARGE)
    names = sorted(arrays)
    parts = {f"model-0000{i + 1}-of-00003.safetensors": names[i::3] for i in range(3)}
    files = {shard: from_arrays({name: arrays[name] for name in held}) for shard, held in parts.items()}
    weight_map = {name: shard for shard, held in parts.items() for name in held}
    index = models.config_json({"metadata": {}, "weight_map": weight_map})
    return Repo(files | {"config.json": models.config_json(LARGE), "model.safetensors.index.json": index})


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


def weights_sent(hub: Hub) -> int:
    """Bytes of weight files sent other than as the beginning of a file."""
    whole = [r for r in hub.requests if r.method == "GET" and r.path.endswith((".safetensors", ".gguf"))]
    return sum(request.sent for request in whole if request.range is None)


def gguf_repo(*names: str) -> Repo:
    return Repo(dict.fromkeys(names, models.gguf_file()))


def test_gguf_only_with_tensor_parallel(hub: Hub, settings: Settings) -> None:
    hub.repos["org/name"] = gguf_repo("m-Q4_K_M.gguf", "m-Q8_0.gguf")
    error = refused("tp_requires_safetensors", settings, tensor_parallel=2)
    assert error.extra["tp_size"] == 2
    assert error.extra["gguf_quants"] == ["Q4_K_M", "Q8_0"]
    assert error.extra["suggestion"]
    assert weights_sent(hub) == 0


def test_a_quant_that_is_only_nearly_there(hub: Hub, settings: Settings) -> None:
    hub.repos["org/name"] = gguf_repo("m-Q6_K_P.gguf", "m-Q4_K_P.gguf")
    error = refused("quant_not_found", settings, quant="q6k")
    assert error.extra["requested"] == "q6k"
    assert error.extra["available"] == ["Q4_K_P", "Q6_K_P"]
    assert error.extra["nearest"] == "Q6_K_P"
    assert hub.asked(".gguf") == []


def test_a_gguf_is_chosen_and_fetched_alone(hub: Hub, settings: Settings) -> None:
    hub.repos["org/name"] = gguf_repo("m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-F16.gguf")
    artifact = get(settings, quant="q8_0")
    assert [path.name for path in artifact.weight_files] == ["m-Q8_0.gguf"]
    assert artifact.format is Format.GGUF
    assert artifact.stored_quant == "Q8_0"
    assert {r.path.rpartition("/")[2] for r in hub.asked(".gguf")} == {"m-Q8_0.gguf"}


def test_a_missing_shard(hub: Hub, settings: Settings) -> None:
    repo = sharded_repo()
    del repo.files["model-00002-of-00003.safetensors"]
    hub.repos["org/name"] = repo
    error = refused("missing_shard", settings)
    assert "model-00002-of-00003.safetensors" in error.message
    assert "incomplete" in error.message
    assert hub.asked(".safetensors") == []


def test_a_missing_gguf_part(hub: Hub, settings: Settings) -> None:
    hub.repos["org/name"] = gguf_repo("m-Q4_K_M-00001-of-00003.gguf", "m-Q4_K_M-00003-of-00003.gguf")
    error = refused("missing_shard", settings, quant="q4_k_m")
    assert "m-Q4_K_M-00002-of-00003.gguf" in error.message
    assert hub.asked(".gguf") == []


@pytest.mark.parametrize("cut", [4, 100, -1])
def test_a_truncated_file(hub: Hub, settings: Settings, cut: int) -> None:
    repo = sharded_repo()
    name = "model-00002-of-00003.safetensors"
    repo.files[name] = repo.files[name][:cut]
    hub.repos["org/name"] = repo
    assert name in refused("corrupt_weights", settings).message
    assert weights_sent(hub) == 0


def test_a_truncated_gguf(hub: Hub, settings: Settings) -> None:
    hub.repos["org/name"] = Repo({"m-Q8_0.gguf": models.gguf_file()[:-8]})
    assert "m-Q8_0.gguf" in refused("invalid_gguf", settings).message
    assert weights_sent(hub) == 0


def test_a_duplicate_tensor(hub: Hub, settings: Settings) -> None:
    repo = sharded_repo()
    first = repo.files["model-00001-of-00003.safetensors"]
    repo.files["model-00002-of-00003.safetensors"] = first
    hub.repos["org/name"] = repo
    assert "too" in refused("corrupt_weights", settings).message
    body = b'{"model.norm.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
    body += b'"model.norm.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    twice = struct.pack("<Q", len(body)) + body + b"\0" * 4
    hub.repos["org/name"] = dense_repo()
    hub.repos["org/name"].files["model.safetensors"] = twice
    assert "twice" in refused("corrupt_weights", settings).message
    assert weights_sent(hub) == 0


def test_fp8_without_its_scale(hub: Hub, settings: Settings) -> None:
    arrays: dict[str, np.ndarray] = dict(models.dense_arrays(models.LLAMA))
    name = "model.layers.0.mlp.up_proj.weight"
    arrays[name] = np.zeros(arrays[name].shape, dtype=np.uint8)
    hub.repos["org/name"] = dense_repo(model__safetensors=from_arrays(arrays, {name: "F8_E4M3"}))
    assert "weight_scale_inv" in refused("corrupt_weights", settings).message
    assert weights_sent(hub) == 0


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"config__json": GEMMA}, "unsupported_architecture"),
        ({"config__json": models.config_json(models.LLAMA, num_hidden_layers=10**9)}, "invalid_model_config"),
        ({"config__json": b"{"}, "invalid_model_config"),
        ({"config__json": models.config_json(models.LLAMA, num_hidden_layers=3)}, "corrupt_weights"),
        ({"model_index__json": b"{}"}, "unsupported_architecture"),
    ],
)  # fmt: skip
def test_configs_that_do_not_serve(hub: Hub, settings: Settings, changes: dict[str, bytes], code: str) -> None:
    hub.repos["org/name"] = dense_repo(**changes)
    refused(code, settings)
    assert weights_sent(hub) == 0


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({}, "empty_repo"),
        ({"README.md": b"x"}, "empty_repo"),
        ({"mmproj-F16.gguf": b"x"}, "empty_repo"),
        ({"adapter_model.safetensors": b"x"}, "empty_repo"),
        ({"pytorch_model.bin": b"x", "config.json": CONFIG}, "unsupported_model"),
        ({"model.safetensors": b"x"}, "invalid_model_config"),
    ],
)
def test_repositories_without_a_model(hub: Hub, settings: Settings, files: dict[str, bytes], code: str) -> None:
    hub.repos["org/name"] = Repo(files)
    refused(code, settings)


def test_no_such_repository(hub: Hub, settings: Settings) -> None:
    assert refused("repo_fetch_failed", settings).extra["cause"] == "not found"


@pytest.mark.parametrize("name", ["../evil.gguf", "/etc/evil.gguf", "a/../../evil.gguf", "a\\evil.gguf", "./m.gguf",
                                  "a//b.gguf", "C:/x.gguf", "a\n.gguf"])  # fmt: skip
def test_listings_that_reach_outside(hub: Hub, settings: Settings, name: str) -> None:
    hub.repos["org/name"] = Repo(dense_repo().files, listed={"config.json": 1, name: 10})
    assert refused("repo_fetch_failed", settings).extra["cause"] == "unsafe file name"
    assert [request.path for request in hub.requests] == ["/api/models/org/name"]


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
