"""Level 3: the real daemon as a process of its own, with a temporary configuration and scripted models, over HTTP."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from openai import OpenAI

ROOT = Path(__file__).resolve().parents[2]
START_S = 60.0
STOP_S = 60.0


def scripted_id(name: str) -> str:
    """The model id of a script given to DaemonProcess as `name`."""
    return f"scripted:{_qualified(name)}"


def _qualified(name: str) -> str:
    return name if "/" in name else f"test/{name}"


def say(*pieces: Any, **turn: Any) -> dict[str, Any]:
    """A script with one turn that emits `pieces`; keyword arguments are keys of the turn."""
    return {"turns": [{"emit": list(pieces), **turn}]}


def _children(pid: int) -> list[int]:
    try:
        lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    direct = [int(word) for text in lists for word in text.split()]
    return direct + [below for child in direct for below in _children(child)]


class DaemonProcess:
    """Context manager. `scripts`: name -> script (the JSON of the contract); `config`: more TOML for the file.

    `models`: names of scripts (or full ids) to load at start, all scripts when None. With `wait` the block begins when
    every start-up model has loaded or failed. `unkind`: what tests.harness.unkind does to it, nothing when empty.
    """

    def __init__(
        self,
        scripts: Mapping[str, dict[str, Any]] | None = None,
        config: str = "",
        models: Sequence[str] | None = None,
        *,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        wait: bool = True,
        port: int = 0,
        unkind: Sequence[str] = (),
    ) -> None:
        self.scripts = dict(scripts or {})
        self.config = config
        self.model_ids = [
            name if ":" in name else scripted_id(name) for name in (self.scripts if models is None else models)
        ]
        self.arguments = list(arguments)
        self.environment = dict(environment or {})
        self.wait = wait
        self.port = port
        self.unkind = list(unkind)
        self.process: subprocess.Popen[bytes]
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._reading = threading.Event()
        self._reading.set()
        self._directory = tempfile.TemporaryDirectory(prefix="neuron-test-")
        self.directory = Path(self._directory.name)

    # -- life ----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self._command(), env=self._environment(), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=ROOT
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.port = int(self.wait_for_log("listening", timeout_s=START_S)["port"])
            if self.wait:
                self.wait_ready()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _command(self) -> list[str]:
        for name, script in self.scripts.items():
            path = self.directory / "scripts" / f"{_qualified(name)}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(script), encoding="utf-8")
        (self.directory / "scripts").mkdir(exist_ok=True)
        config = self.directory / "neuron.toml"
        source = f'\n[sources.scripted]\nkind = "scripted"\npath = {json.dumps(str(self.directory / "scripts"))}\n'
        config.write_text(self.config + source, encoding="utf-8")
        program = ["tests.harness.unkind", *self.unkind, "--"] if self.unkind else ["neuron"]
        command = [sys.executable, "-m", *program, "serve", "--config", str(config), "--port", str(self.port)]
        command += ["--enable-scripted", "--log-format", "json"]
        for model_id in self.model_ids:
            command += ["--model", model_id]
        return command + self.arguments

    def _environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("NEURON_", "HF_"))}
        return {**kept, "HOME": str(self.directory), **self.environment}

    def _end(self) -> None:
        self._reading.set()
        try:
            if self.process.poll() is None:
                self.process.terminate()
                try:
                    self.process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    self.process.kill()
                    self.process.wait()
            self._reader.join(5.0)
            assert self.process.stderr is not None
            self.process.stderr.close()
        finally:
            self._directory.cleanup()

    def terminate(self, timeout_s: float = STOP_S) -> int:
        """SIGTERM; the exit status."""
        self.process.terminate()
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL of the daemon alone."""
        self.process.kill()
        self.process.wait()

    def send_signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    # -- facts ---------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def device_pids(self) -> dict[str, int]:
        """Device id -> pid of its process, as /health tells."""
        devices = self.get("/health")["devices"]
        return {device["id"]: device["pid"] for device in devices if device["pid"] is not None}

    def descendants(self) -> list[int]:
        """Pids of every process below the daemon."""
        return _children(self.pid)

    def model_id(self, name: str) -> str:
        return scripted_id(name)

    # -- talking to it -------------------------------------------------------------------------

    def client(self, **options: Any) -> httpx.Client:
        settings: dict[str, Any] = {"base_url": self.url, "timeout": 30.0, "trust_env": False}
        return httpx.Client(**{**settings, **options})

    def openai(self, **options: Any) -> OpenAI:
        """The official client, without retries unless told otherwise."""
        client = httpx.Client(trust_env=False)
        settings: dict[str, Any] = {"api_key": "none", "max_retries": 0, "http_client": client}
        return OpenAI(base_url=f"{self.url}/v1", **{**settings, **options})

    def get(self, path: str) -> Any:
        with self.client() as client:
            return client.get(path).raise_for_status().json()

    def chat(self, name: str, content: str = "hi", **fields: Any) -> httpx.Response:
        """One buffered chat completion with a single user turn."""
        with self.client() as client:
            return client.post("/v1/chat/completions", json=self.chat_body(name, content, **fields))

    def chat_body(self, name: str, content: str = "hi", **fields: Any) -> dict[str, Any]:
        model = name if ":" in name else scripted_id(name)
        return {"model": model, "messages": [{"role": "user", "content": content}], "temperature": 0, **fields}

    def load(self, name: str, **fields: Any) -> httpx.Response:
        model = name if ":" in name else scripted_id(name)
        with self.client() as client:
            return client.post("/models/load", json={"model_id": model, "harness": "candle", **fields})

    def unload(self, name: str) -> httpx.Response:
        model = name if ":" in name else scripted_id(name)
        with self.client() as client:
            return client.post("/models/unload", json={"model_id": model})

    def model(self, name: str) -> dict[str, Any] | None:
        """The model's entry in /models?all=true; None when it is not there."""
        bare = _qualified(name)
        found = [entry for entry in self.get("/models?all=true") if bare in (entry["id"], entry["source_id"])]
        found = found or [entry for entry in self.get("/models?all=true") if entry["id"].endswith(bare)]
        return found[0] if found else None

    def wait_ready(self, timeout_s: float = START_S) -> None:
        deadline = time.monotonic() + timeout_s
        with self.client() as client:
            while client.get("/health/ready").status_code != 200:
                self._check_alive(deadline, "not ready")
                time.sleep(0.02)

    def wait_state(self, name: str, state: str, timeout_s: float = 10.0) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while True:
            entry = self.model(name)
            if entry is not None and entry["state"] == state:
                return entry
            self._check_alive(deadline, f"{name} is not {state} but {entry and entry['state']}")
            time.sleep(0.02)

    def _check_alive(self, deadline: float, what: str) -> None:
        if self.process.poll() is not None:
            raise AssertionError(f"the daemon ended with {self.process.returncode}:\n" + "\n".join(self._lines[-20:]))
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} in time:\n" + "\n".join(self._lines[-20:]))

    # -- its log -------------------------------------------------------------------------------

    def _read(self) -> None:
        assert self.process.stderr is not None
        for raw in self.process.stderr:
            self._reading.wait()
            with self._news:
                self._lines.append(raw.decode("utf-8", "replace").rstrip("\n"))
                self._news.notify_all()

    def pause_reading(self) -> None:
        """Leave the log unread, so that its pipe fills up."""
        self._reading.clear()

    def resume_reading(self) -> None:
        self._reading.set()

    def raw_log(self) -> list[str]:
        """Every line on stderr so far, of the daemon and its device processes."""
        with self._news:
            return list(self._lines)

    def log_lines(self, event: str | None = None, **keys: Any) -> list[dict[str, Any]]:
        """The log as objects, filtered by event and keys. A line that is not a JSON object fails the test."""
        found = []
        for line in self.raw_log():
            entry = json.loads(line)
            assert isinstance(entry, dict), line
            if event in (None, entry.get("event")) and all(entry.get(key) == value for key, value in keys.items()):
                found.append(entry)
        return found

    def wait_for_log(self, event: str, timeout_s: float = 10.0, **keys: Any) -> dict[str, Any]:
        """The first matching line, waiting for it if need be."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                found = self.log_lines(event, **keys)
            except json.JSONDecodeError as error:
                raise AssertionError(f"a log line is not JSON: {error.doc[:500]}") from None
            if found:
                return found[0]
            with self._news:
                self._news.wait(0.1)
            self._check_alive(deadline, f"no log line '{event}'")
