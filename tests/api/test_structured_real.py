"""A small real model under 30 schemas of rising difficulty: every answer validates within a small limit, and ends."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.actors.parser.schemas import OPEN, SCHEMAS
from tests.harness.daemon import DaemonProcess

MODEL = "demo:huggingfacetb/smollm2-135m-instruct"
#: The ones that end by themselves are left to the fast tests; these ask for objects, or can run on for ever.
EASY = ("true", "null", "boolean", "integer", "short string", "enum", "exclusive bounds", "pattern", "date", "nullable")
NAMES = [name for name in {**SCHEMAS, **OPEN} if name not in EASY and name != "long minimum"][-30:]
LIMIT = 64
#: Schemas whose shortest answer takes more tokens than LIMIT.
LONGER = {"form": 180, "uuid": 80}


@pytest.fixture(name="daemon", scope="module")
def _daemon() -> Iterator[DaemonProcess]:
    # The compiled code of the tests' own user: the daemon under test has another home otherwise.
    environment = {"XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))}
    with DaemonProcess(models=[MODEL], environment=environment, wait=False) as daemon:
        daemon.wait_ready(timeout_s=200.0)
        yield daemon


def ask(daemon: DaemonProcess, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Write JSON about a long journey."}]
    with daemon.client(timeout=110.0) as client:
        answer = client.post("/v1/chat/completions", json={"model": MODEL, "messages": messages, **fields})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_every_answer_validates_and_ends(daemon: DaemonProcess, temperature: float) -> None:
    assert len(NAMES) == 30
    for name in NAMES if temperature == 0 else NAMES[::3]:
        schema = {**SCHEMAS, **OPEN}[name]
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        limit = LONGER.get(name, LIMIT)
        body = ask(daemon, response_format=form, max_tokens=limit, temperature=temperature, seed=7)
        choice = body["choices"][0]
        assert choice["finish_reason"] == "stop", name
        assert body["usage"]["completion_tokens"] <= limit
        jsonschema.validate(json.loads(choice["message"]["content"]), schema)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_forced_call_ends_in_time(daemon: DaemonProcess) -> None:
    parameters = OPEN["essay"]
    tool = {"type": "function", "function": {"name": "note", "parameters": parameters}}
    body = ask(daemon, tools=[tool], tool_choice="required", max_tokens=LIMIT, temperature=0)
    [call] = body["choices"][0]["message"]["tool_calls"][:1]
    assert body["choices"][0]["finish_reason"] == "tool_calls"
    jsonschema.validate(json.loads(call["function"]["arguments"]), parameters)
