"""The recipes of ops/docs/journal.md, run by jq on output recorded from a daemon (tests/data/journal.jsonl)."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ops.log_events import events

ROOT = Path(__file__).parents[2]
RECORDED = (ROOT / "tests" / "data" / "journal.jsonl").read_text(encoding="utf-8")
PAGE = (ROOT / "ops" / "docs" / "journal.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"^## ([^\n]+)\n.*?```sh\n(.+?)\n```", PAGE, re.DOTALL | re.MULTILINE))
needs_jq = pytest.mark.skipif(shutil.which("jq") is None, reason="no jq on this machine")


def run(title: str) -> list[str]:
    """The recipe as it stands, with the recorded lines in place of journalctl."""
    _, _, command = RECIPES[title].partition(" | ")
    done = subprocess.run(["sh", "-c", command], input=RECORDED, capture_output=True, text=True, timeout=30, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


def objects(title: str) -> list[Any]:
    return [json.loads(line) for line in run(title)]


def test_recipes_name_events_that_exist() -> None:
    known = {event.name for event in events()}
    text = "\n".join(RECIPES.values())
    listed = text.partition("IN(")[2].partition(")")[0]
    named = set(re.findall(r'\.event == "([^"]+)"', text)) | set(re.findall(r'"([^"]+)"', listed))
    assert len(named) == 10
    assert named <= known


@needs_jq
def test_follow_one_request() -> None:
    lines = objects("Follow one request")
    assert [line["event"] for line in lines] == ["starting", "model marked poisoned", "failed", "request rejected"]


@needs_jq
def test_poisoned_models() -> None:
    (record,) = objects("Poisoned models: which, when, why, by which request")
    assert (record["model"], record["device"], record["req_id"]) == ("example/broken", "cpu:1", "night-2")
    assert record["reason"] == "device_fault"


@needs_jq
def test_everything_that_went_wrong() -> None:
    lines = run("Everything that went wrong, one line each")
    assert [line.split(" ", 1)[1].split(" example")[0].split(" cpu")[0] for line in lines] == [
        "job failed",
        "model marked poisoned",
        "device process died",
    ]


@needs_jq
def test_failed_requests_by_code() -> None:
    (counts,) = objects("Failed requests by code")
    assert {entry["code"]: entry["count"] for entry in counts} == {
        "device_fault": 1,
        "model_not_found": 1,
        "model_poisoned": 1,
        "rate_limit_exceeded": 1,
    }


@needs_jq
def test_slow_first_tokens_and_waits() -> None:
    slow = objects("Requests whose first token took longer than two seconds")
    assert [entry["req_id"] for entry in slow] == ["night-5", "night-6"]
    assert slow[1]["queue_ms"] > 2000
    (waited,) = objects("Who waited for a model")
    assert (waited["req_id"], waited["position"]) == ("night-6", 1)


@needs_jq
def test_tokens_by_model() -> None:
    (models,) = objects("Tokens by model")
    assert {entry["model"]: (entry["requests"], entry["out"]) for entry in models} == {
        "example/broken": (1, 0),
        "example/good": (1, 3),
        "example/slow": (2, 4),
    }


@needs_jq
def test_loads_as_they_happen() -> None:
    lines = run("Loads, unloads and the ends of device processes, as they happen")
    assert sum("load started" in line for line in lines) == 4
    assert any("device process died cpu:1" in line for line in lines)
    assert any("model unloaded example/good" in line for line in lines)
