"""In-situ quantisation from outside: a safetensors model loaded with `quant` over HTTP and by the command line."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.harness.daemon import ROOT, DaemonProcess
from tests.kernels.decoder.tiny import tiny

pytestmark = pytest.mark.timeout(600)

MODEL = "local:test/dense"
#: Compiling for this host is part of the first load.
LOAD_S = 120.0


def byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({text: index for index, text in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", normalized=False)])
    return tokenizer


@pytest.fixture(name="daemon", scope="module")
def _daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    root = tmp_path_factory.mktemp("models")
    folder = root / "test" / "dense"
    folder.mkdir(parents=True)
    wide: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "initializer_range": 0.05, "vocab_size": 257}
    tiny(folder, "Qwen3", **wide, bos_token_id=None, eos_token_id=256, pad_token_id=None)
    byte_level().save(str(folder / "tokenizer.json"))
    template = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": "<|end|>"}))
    config = f'[sources.local]\nkind = "directory"\npath = {json.dumps(str(root))}\n'
    # Code that is compiled already need not be compiled for this daemon.
    environment = {"XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))}
    with DaemonProcess(config=config, environment=environment) as daemon:
        yield daemon


def load(daemon: DaemonProcess, quant: str, **fields: Any) -> httpx.Response:
    with daemon.client(timeout=LOAD_S) as client:
        body = {"model_id": MODEL, "harness": "candle", "quant": quant, **fields}
        return client.post("/models/load", json=body)


def test_blocks_answer_over_http(daemon: DaemonProcess) -> None:
    assert load(daemon, "Q4_K_M").status_code < 300
    assert daemon.wait_state(MODEL, "ready", 30.0)["quant"] == "q4_k"
    body = daemon.chat(MODEL, "abc", max_tokens=4).json()
    assert body["usage"]["completion_tokens"] >= 1
    assert daemon.unload(MODEL).status_code < 300


def test_the_command_line_loads_with_a_quant(daemon: DaemonProcess) -> None:
    command = [sys.executable, "-m", "neuron", "load", MODEL, "--quant", "q80", "--url", daemon.url]
    done = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, timeout=LOAD_S, check=False)
    assert done.returncode == 0, done.stderr.decode()
    entry = daemon.wait_state(MODEL, "ready", 30.0)
    assert entry["quant"] == "q8_0"
    assert daemon.unload(MODEL).status_code < 300


def test_refusals_are_typed_and_leave_nothing(daemon: DaemonProcess) -> None:
    assert load(daemon, "q1_k").json()["error"]["code"] == "quant_not_found"
    assert load(daemon, "q4_k", tensor_parallel=3).json()["error"]["code"] == "indivisible_heads"
    assert daemon.get("/models") == []


def test_blocks_are_shared_out(daemon: DaemonProcess) -> None:
    assert load(daemon, "q8_0", tensor_parallel=2).status_code < 300
    entry = daemon.wait_state(MODEL, "ready", 30.0)
    assert (entry["quant"], entry["tensor_parallel"]) == ("q8_0", 2)
    body = daemon.chat(MODEL, "abc", max_tokens=4).json()
    assert body["usage"]["completion_tokens"] >= 1
    assert daemon.unload(MODEL).status_code < 300
