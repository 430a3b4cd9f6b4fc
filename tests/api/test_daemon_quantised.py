"""In-situ quantisation from outside: a safetensors model loaded with `quant` over HTTP and by the command line."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.harness.daemon import ROOT, DaemonProcess
from tests.harness.dense_model import compiled_code, directory_source, write_dense_model

pytestmark = pytest.mark.timeout(600)

MODEL = "local:test/dense"
#: Compiling for this host is part of the first load.
LOAD_S = 120.0


@pytest.fixture(name="daemon", scope="module")
def _daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    root = tmp_path_factory.mktemp("models")
    write_dense_model(root / "test" / "dense")
    with DaemonProcess(config=directory_source(root), environment=compiled_code()) as daemon:
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
