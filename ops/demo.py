"""`python -m ops.demo`: starts the daemon with an embedded model and asks it a question over the OpenAI API.

With `--serve` the daemon stays up on 127.0.0.1:13131. Nothing is downloaded.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

from ops.tiny_vision.pictures import data_uri, random_picture
from ops.tiny_vision.show import drawn

MODELS = {"smollm2": "demo:huggingfacetb/smollm2-135m-instruct", "tiny-vision": "tiny:neuron/tiny-vision"}
#: What lies beside this file: a source of its own, in addition to the built-in ones.
CONFIG = (
    f'[sources.tiny]\nkind = "directory"\npath = {json.dumps(str(Path(__file__).parent / "tiny_vision" / "model"))}\n'
)
QUESTION = "What is the capital of France?"
PICTURE_QUESTION = "What do you see?"
HOST = "127.0.0.1"
SERVE_PORT = 13131
START_S = 180.0
#: Longer than the daemon itself waits for a load that does not move.
STALL_S = 330.0
STOP_S = 60.0
STAGES = {"read": "reading weights", "compile": "warming up, compiling what this CPU has no code for yet"}


class DemoError(Exception):
    """Shown as one line; the demo ends with status 1."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ops.demo", description="Show neuron at work.")
    parser.add_argument("--model", default="smollm2", help="smollm2, tiny-vision, or a full model id")
    parser.add_argument("--serve", action="store_true", help=f"stay up on {HOST}:{SERVE_PORT}")
    parser.add_argument("--question")
    parser.add_argument("--port", type=int, help=f"default: {SERVE_PORT} with --serve, else a free one")
    options = parser.parse_args(arguments)
    # Leaves through the `with` below, so that no daemon is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    model = MODELS.get(options.model, options.model)
    port = options.port if options.port is not None else (SERVE_PORT if options.serve else 0)
    try:
        with Daemon(model, port) as daemon:
            daemon.wait_until_loaded()
            if options.serve:
                return stay(daemon)
            if options.model == "tiny-vision":
                look(daemon, options.question or PICTURE_QUESTION)
            else:
                ask(daemon, options.question or QUESTION)
            say("stopping the daemon ...")
    except DemoError as error:
        say(f"demo failed: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    say("done.")
    return 0


class Daemon:
    """The daemon as a child process; its log goes to a file that is shown when something fails."""

    def __init__(self, model: str, port: int) -> None:
        self.model = model
        self._port = port
        self._log: list[str] = []
        self._listening = threading.Event()
        self.url = ""

    def __enter__(self) -> "Daemon":
        self._home = tempfile.TemporaryDirectory(prefix="neuron-demo-")
        command = [sys.executable, "-m", "neuron", "serve", "--host", HOST, "--port", str(self._port)]
        command += ["--model", self.model, "--log-format", "json"]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("NEURON_")}
        # An operator's own configuration must not change the demo.
        config = os.path.join(self._home.name, "neuron.toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(CONFIG)
        self.process = subprocess.Popen(
            [*command, "--config", config],
            env=environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            # The terminal's Ctrl-C is ours to pass on.
            start_new_session=True,
        )
        threading.Thread(target=self._read_log, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._home.cleanup()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for raw in self.process.stderr:
            line = raw.decode("utf-8", "replace").rstrip()
            self._log.append(line)
            with contextlib.suppress(ValueError, TypeError, KeyError):
                entry = json.loads(line)
                if entry["event"] == "listening":
                    self.url = f"http://{HOST}:{entry['port']}"
                    self._listening.set()
        self._listening.set()

    def wait_until_loaded(self) -> None:
        """As long as the load makes progress. Raises DemoError with the daemon's own reason."""
        say("starting the daemon ...")
        self._listening.wait(START_S)
        if not self.url:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5.0)
            raise DemoError(self._last_words())
        say(f"listening on {self.url}; loading {self.model} ...")
        shown = Shown()
        # Joins the load that the daemon has started by itself.
        for step in self.stream("/models/load?stream=true", {"model_id": self.model}, silence_s=STALL_S):
            if "error" in step:
                raise DemoError(f"{self.model} could not be loaded: {step['error']['message']}")
            if "stage" in step:
                shown.step(step["stage"], step["fraction"])
            if time.monotonic() - shown.moved_at > STALL_S:
                raise DemoError(f"the load has not moved for {STALL_S:.0f} s. {self._last_words()}")

    def stream(self, path: str, body: dict[str, Any], *, silence_s: float = 60.0) -> Iterator[dict[str, Any]]:
        """The data of each server-sent event; nothing at all for `silence_s` seconds is an error."""
        timeout = httpx.Timeout(silence_s)
        try:
            with (
                httpx.Client(base_url=self.url, timeout=timeout, trust_env=False) as client,
                client.stream("POST", path, json=body) as response,
            ):
                if response.status_code != 200:
                    raise DemoError(response.read().decode("utf-8", "replace"))
                for line in response.iter_lines():
                    if line.startswith("data: {"):
                        yield json.loads(line[6:])
        except httpx.HTTPError as error:
            raise DemoError(f"the daemon does not answer. {self._last_words()}") from error

    def _last_words(self) -> str:
        return self._log[-1][:1000] if self._log else f"It ended with status {self.process.poll()}."


def look(daemon: Daemon, question: str) -> None:
    """Show a new picture, ask about it, and say what it is."""
    picture = random_picture(random.Random())
    show("\n" + drawn(picture.image, colour=sys.stdout.isatty()) + "\n")
    ask(daemon, question, picture.image)
    say(f"drawn:   {picture.answer}")


class Shown:
    """Lines of a load's progress: each new stage, then every few seconds."""

    def __init__(self) -> None:
        self._stage, self._began_at, self._said_at = "", 0.0, 0.0
        #: When a step last came; the daemon sends none while nothing moves.
        self.moved_at = time.monotonic()

    def step(self, stage: str, fraction: float) -> None:
        now = self.moved_at = time.monotonic()
        if stage != self._stage:
            self._stage, self._began_at = stage, now
        elif now - self._said_at < 5.0:
            return
        self._said_at = now
        if fraction < 1.0:
            say(f"  {STAGES.get(stage, stage)}: {fraction:.0%} after {now - self._began_at:.0f} s")


def ask(daemon: Daemon, question: str, image: Image.Image | None = None) -> None:
    content: Any = question
    if image is not None:
        content = [{"type": "image_url", "image_url": {"url": data_uri(image)}}, {"type": "text", "text": question}]
    body = {
        "model": daemon.model,
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": 64,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    show(f"\n> {question}\n")
    timings: dict[str, Any] = {}
    pieces: list[str] = []
    for chunk in daemon.stream("/v1/chat/completions", body):
        if "error" in chunk:
            raise DemoError(chunk["error"]["message"])
        timings = chunk.get("timings", timings)
        for choice in chunk["choices"]:
            piece = choice["delta"].get("content") or ""
            pieces.append(piece)
            show(piece)
    show("\n\n")
    if not "".join(pieces).strip() or not timings:
        raise DemoError("the answer is empty.")
    say(f"prefill: {timings['prompt_n']} tokens at {timings['prompt_per_second']:.1f} tokens/s")
    say(f"decode:  {timings['predicted_n']} tokens at {timings['predicted_per_second']:.1f} tokens/s")


def stay(daemon: Daemon) -> int:
    """Until Ctrl-C, SIGTERM, or the daemon's own end."""
    messages = [{"role": "user", "content": QUESTION}]
    body = json.dumps({"model": daemon.model, "temperature": 0, "messages": messages})
    say("ready. Try:\n")
    show(f"curl {daemon.url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'\n\n")
    say("or: .venv/bin/neuron chat. Ctrl-C stops the daemon.")
    signal.signal(signal.SIGTERM, lambda *_: daemon.process.send_signal(signal.SIGTERM))
    try:
        return daemon.process.wait()
    except KeyboardInterrupt:
        say("\nstopping the daemon ...")
        return 0


def say(text: str) -> None:
    show(text + "\n")


def show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
