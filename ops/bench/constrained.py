"""Tokens a second of the demo model with and without a JSON schema, over HTTP: python -m ops.bench.constrained.

The same prompt in turn, free and under a schema that keeps it writing; medians, and how much longer a token takes.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.harness.daemon import DaemonProcess

MODEL = "demo:huggingfacetb/smollm2-135m-instruct"
PROMPT = "Describe a person with very many hobbies."
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "hobbies": {"type": "array", "items": {"type": "string"}, "minItems": 40},
    },
    "required": ["name", "age", "hobbies"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
PATIENCE_S = 300.0


def rate(client: httpx.Client, tokens: int, **fields: Any) -> float:
    """Tokens a second of one answer, its prefill left out."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": tokens}
    answer = client.post("/v1/chat/completions", json={**body, **fields}).raise_for_status().json()
    return float(answer["timings"]["predicted_per_second"])


def measure(rounds: int, tokens: int) -> dict[str, object]:
    cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    with DaemonProcess(models=[MODEL], environment={"XDG_CACHE_HOME": cache}, wait=False) as daemon:
        daemon.wait_ready(PATIENCE_S)
        with daemon.client(timeout=PATIENCE_S) as client:
            rate(client, tokens)
            rate(client, tokens, response_format=FORMAT)
            free, held = [], []
            for _ in range(rounds):
                free.append(rate(client, tokens))
                held.append(rate(client, tokens, response_format=FORMAT))
    ratio = statistics.median(free) / statistics.median(held)
    return {"free_tok_s": free, "constrained_tok_s": held, "times_as_long": round(ratio, 3)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.constrained", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=120)
    options = parser.parse_args(arguments)
    sys.stdout.write(json.dumps(measure(options.rounds, options.tokens)) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
