"""`python -m ops.bench.overhead`: what the daemon adds to the device's own time, by scripted steps of a known length.

A real daemon, a real device process, HTTP clients in this process; rows as long as the largest vocabularies in use.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection as Connection
from pathlib import Path
from statistics import median
from typing import Any

import click

from neuron.api.cli.percentiles import percentile

MODEL = "scripted:test/rows"
_START_S = 120.0
#: A prompt with this text is answered in steps that take time.
_WHEN_STEP = "slow please"

#: Name -> sampling of a request. The first is the one that the goal is set for.
SAMPLING: dict[str, dict[str, Any]] = {
    "top-k 40, top-p 0.95": {"temperature": 0.7, "top_k": 40, "top_p": 0.95},
    "top-p 0.95": {"temperature": 0.7, "top_p": 0.95},
    "min-p 0.05": {"temperature": 0.7, "min_p": 0.05},
    "temperature alone": {"temperature": 0.7},
    "greedy": {"temperature": 0},
    "top-k, top-p, penalties": {"temperature": 0.7, "top_k": 40, "top_p": 0.95, "repetition_penalty": 1.1},
}


def script(vocabulary: int, step_ms: float) -> dict[str, Any]:
    """One id for each of `vocabulary`, and steps of `step_ms` for prompts that ask for them."""
    special = ["<|im_end|>"]
    # Ids come from what turns say: one that is never taken says all of them.
    words = [f"w{number} " for number in range(vocabulary - 258)]
    turns = [
        {"when": _WHEN_STEP, "emit": ["x"], "delay_ms": step_ms},
        {"when": None, "emit": ["x"]},
        {"when": "never", "emit": words},
    ]
    kinds = {"special_tokens": special, "eos_token": special[0], "vocab_size": vocabulary}
    return {"context_length": 32768, "turns": turns, **kinds}


class Daemon:
    """Context manager: the daemon with stopwatches, one model loaded."""

    def __init__(self, vocabulary: int, step_ms: float) -> None:
        self._script = script(vocabulary, step_ms)

    def __enter__(self) -> "Daemon":
        self._home = tempfile.TemporaryDirectory(prefix="neuron-bench-")
        home = Path(self._home.name)
        path = home / "test" / "rows.json"
        path.parent.mkdir()
        path.write_text(json.dumps(self._script), encoding="utf-8")
        config = home / "neuron.toml"
        config.write_text(f'[sources.scripted]\nkind = "scripted"\npath = {json.dumps(str(home))}\n', encoding="utf-8")
        command = [sys.executable, "-m", "ops.bench.overhead_daemon", "serve", "--config", str(config), "--port", "0"]
        command += ["--enable-scripted", "--model", MODEL, "--log-format", "json"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self._log: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.port = int(self._wait_for("listening")["port"])
        self._wait_for("construction complete")
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(30.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(5.0)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        self._home.cleanup()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self._log.append(json.loads(line) if line.startswith("{") else {"event": line})
                self._news.notify_all()

    def _wait_for(self, event: str) -> dict[str, Any]:
        def seen() -> dict[str, Any] | None:
            return next((entry for entry in self._log if entry["event"] == event), None)

        with self._news:
            found = self._news.wait_for(seen, _START_S)
        if not found:
            raise click.ClickException(f"the daemon did not say '{event}': {self._log[-3:]}")
        return found

    def figures(self) -> dict[str, list[float]]:
        """The stopwatches since the last call, in seconds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        found: dict[str, list[float]] = json.loads(self.process.stdout.readline())
        return found

    def connect(self) -> Connection:
        return Connection("127.0.0.1", self.port, timeout=120.0)


def stream(connection: Connection, content: str, tokens: int, **fields: Any) -> Iterator[dict[str, Any]]:
    """The chunks of one streamed chat."""
    messages = [{"role": "user", "content": content}]
    body = {"model": MODEL, "messages": messages, "max_tokens": tokens, "stream": True, **fields}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise click.ClickException(response.read().decode())
    for line in response:
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


def steps(daemon: Daemon, tokens: int) -> dict[str, list[float]]:
    """By way of sampling: seconds between a row and the next step, while each token is streamed to a client."""
    found: dict[str, list[float]] = {}
    connection = daemon.connect()
    for name, sampling in SAMPLING.items():
        for _ in stream(connection, _WHEN_STEP, 16, **sampling):
            pass
        daemon.figures()
        for _ in stream(connection, _WHEN_STEP, tokens, **sampling):
            pass
        found[name] = daemon.figures()["row_to_step"]
    connection.close()
    return found


def first_tokens(daemon: Daemon, length: int, rounds: int) -> list[float]:
    """Seconds to the first token of streamed requests with `length` characters, less what the device's prefill took."""
    taken: list[float] = []
    connection = daemon.connect()
    for number in range(rounds + 3):
        # Begins differently each time, so that nothing is reused.
        content = (f"{number} " + "word " * (length // 5 + 1))[:length]
        start, first, prefill = time.perf_counter(), 0.0, 0.0
        for chunk in stream(connection, content, 2, **SAMPLING["top-k 40, top-p 0.95"]):
            if not first and chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                first = time.perf_counter() - start
            if "timings" in chunk:
                prefill = chunk["timings"]["prompt_ms"] / 1e3
        if number >= 3:
            taken.append(first - prefill)
    connection.close()
    return taken


def hand_overs(daemon: Daemon, clients: int, rounds: int) -> list[float]:
    """Seconds from the lock's release to the first job of a request that waited for it."""
    daemon.figures()

    def ask() -> None:
        connection = daemon.connect()
        for _ in range(rounds):
            for _ in stream(connection, _WHEN_STEP, 4, **SAMPLING["top-k 40, top-p 0.95"]):
                pass
        connection.close()

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return daemon.figures()["release_to_job"]


def throughput(daemon: Daemon, tokens: int) -> float:
    """Tokens per second when the device takes no time: all that the daemon, its link and one client cost."""
    connection = daemon.connect()
    start = time.perf_counter()
    for _ in stream(connection, "go", tokens, **SAMPLING["top-k 40, top-p 0.95"]):
        pass
    connection.close()
    return tokens / (time.perf_counter() - start)


def line(name: str, seconds: list[float], unit: str, goal: float | None = None) -> str:
    """`goal` in `unit`, for the median."""
    scale = {"us": 1e6, "ms": 1e3}[unit]
    p50, p95, most = (percentile(seconds, share) * scale for share in (0.5, 0.95, 1.0))
    text = f"{name:<52} p50 {p50:8.1f}  p95 {p95:8.1f}  max {most:8.1f} {unit}  (n {len(seconds)})"
    return text if goal is None else f"{text}  goal {goal:g}: {'met' if p50 <= goal else 'MISSED'}"


@click.command()
@click.option("--vocabulary", default=248_320, show_default=True, help="Logits of a row.")
@click.option("--tokens", default=400, show_default=True, help="Of each streamed answer.")
@click.option("--step-ms", default=4.0, show_default=True, help="What the device takes for a token.")
@click.option("--rounds", default=40, show_default=True, help="Requests for each of the other figures.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(vocabulary: int, tokens: int, step_ms: float, rounds: int, as_json: bool) -> None:
    """Measure the daemon's own share of each token, first token and change of hands."""
    with Daemon(vocabulary, step_ms) as daemon:
        by_sampling = steps(daemon, tokens)
        short, long = first_tokens(daemon, 200, rounds), first_tokens(daemon, 8000, rounds)
        handed = hand_overs(daemon, 2, rounds)
        rate = throughput(daemon, 4 * tokens)
    if as_json:
        report = {
            "row_to_next_step_us": {name: median(taken) * 1e6 for name, taken in by_sampling.items()},
            "first_token_ms": {"short": median(short) * 1e3, "8000 characters": median(long) * 1e3},
            "release_to_next_ms": median(handed) * 1e3,
            "tokens_per_second": rate,
        }
        click.echo(json.dumps(report, indent=2))
        return
    click.echo(f"rows of {vocabulary} logits, steps of {step_ms:g} ms, each token streamed to a client")
    for number, (name, taken) in enumerate(by_sampling.items()):
        click.echo(line(f"row to next step: {name}", taken, "us", 300.0 if number == 0 else None))
    click.echo(line("first token above the prefill, 200 characters", short, "ms", 15.0))
    click.echo(line("first token above the prefill, 8,000 characters", long, "ms", 15.0))
    click.echo(line("release of the lock to the next request's job", handed, "ms", 5.0))
    click.echo(f"{'a device that takes no time':<52} {rate:.0f} tokens/s to one client")


if __name__ == "__main__":
    main()
