"""Models on the test hub, and how tests ask for them."""

from typing import Any

import anyio
import pytest

from neuron.actors.errors import PreflightError
from neuron.actors.settings import Settings
from neuron.actors.sources.artifact import ModelArtifact
from neuron.actors.sources.ids import parse_model_id
from neuron.actors.sources.preflight import PreflightReport
from neuron.actors.sources.resolve import preflight_remote, resolve
from tests.actors.sources.hub_server import Hub, Repo
from tests.kernels.formats import models
from tests.kernels.formats.safetensors_files import from_arrays

CONFIG = models.config_json(models.LLAMA)
GEMMA = models.config_json(models.LLAMA, architectures=["GemmaForCausalLM"])
LARGE = models.LLAMA | {"vocab_size": 5_000, "hidden_size": 64}


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


def weights_sent(hub: Hub) -> int:
    """Bytes of weight files sent other than as the beginning of a file."""
    whole = [r for r in hub.requests if r.method == "GET" and r.path.endswith((".safetensors", ".gguf"))]
    return sum(request.sent for request in whole if request.range is None)


def gguf_repo(*names: str) -> Repo:
    return Repo(dict.fromkeys(names, models.gguf_file()))
