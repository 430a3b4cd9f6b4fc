"""What a hub may serve that must not load: each its typed error before a weight is fetched."""

import struct

import numpy as np
import pytest

from neuron.actors.settings import Settings
from neuron.actors.sources.artifact import Format
from neuron.actors.sources.plan import Plan
from neuron.actors.sources.preflight import report_of_plan
from tests.actors.sources.hub_models import (
    CONFIG,
    GEMMA,
    dense_repo,
    get,
    gguf_repo,
    refused,
    sharded_repo,
    weights_sent,
)
from tests.actors.sources.hub_server import Hub, Repo
from tests.kernels.formats import models
from tests.kernels.formats.safetensors_files import from_arrays


def test_gguf_only_with_tensor_parallel(hub: Hub, settings: Settings) -> None:
    hub.repos["org/name"] = gguf_repo("m-Q4_K_M.gguf", "m-Q8_0.gguf")
    error = refused("tp_requires_safetensors", settings, tensor_parallel=2)
    assert error.extra["tp_size"] == 2
    assert error.extra["gguf_quants"] == ["Q4_K_M", "Q8_0"]
    assert error.extra["suggestion"]
    assert weights_sent(hub) == 0


def test_what_does_not_fit_or_divide_is_not_fetched(hub: Hub, settings: Settings) -> None:
    hub.repos["org/name"] = dense_repo()

    def check(plan: Plan) -> None:
        report_of_plan(plan, tensor_parallel=2, free_bytes=1)

    error = refused("does_not_fit", settings, tensor_parallel=2, check=check)
    assert error.extra["free_bytes"] == 1
    refused("indivisible_heads", settings, tensor_parallel=3)
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
