"""LlamaCpp: the peer in a child process, with this interpreter or another one that has llama-cpp-python."""

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ops.bench.engine import Logits

_CHILD = Path(__file__).with_name("llama_cpp_child.py")


def has_llama_cpp(python: str) -> bool:
    """Whether `python` can import llama_cpp."""
    done = subprocess.run([python, "-c", "import llama_cpp"], capture_output=True, timeout=120, check=False)
    return done.returncode == 0


class LlamaCpp:
    def __init__(self, python: str, path: Path, context: int, threads: int) -> None:
        command = [python, str(_CHILD), str(path), str(context), str(threads)]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.name = f"llama.cpp ({self._read()['version']})"

    def prefill(self, tokens: Sequence[int]) -> float:
        return float(self._ask({"do": "prefill", "tokens": list(tokens)})[0])

    def extend(self, tokens: Sequence[int]) -> float:
        return float(self._ask({"do": "extend", "tokens": list(tokens)})[0])

    def decode(self, tokens: Sequence[int]) -> list[float]:
        return self._ask({"do": "decode", "tokens": list(tokens)})

    def turn(self, tokens: Sequence[int], tail: int) -> tuple[float, int]:
        """Seconds until the logits after `tokens`, and how many of them were reused from the turn before."""
        answer = self._answer({"do": "turn", "tokens": list(tokens), "tail": tail})
        return float(answer["seconds"][0]), int(answer["reused"])

    def logits(self) -> Logits:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "logits.npy"
            self._ask({"do": "logits", "path": str(path)})
            values: Logits = np.load(path)
        return values

    def close(self) -> None:
        """Close its input, which ends it."""
        if self._child.stdin is not None:
            self._child.stdin.close()
        try:
            self._child.wait(10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def _ask(self, order: dict[str, object]) -> list[float]:
        seconds: list[float] = self._answer(order)["seconds"]
        return seconds

    def _answer(self, order: dict[str, object]) -> dict[str, Any]:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(order) + "\n")
        self._child.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"llama.cpp's process ended with {self._child.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer
