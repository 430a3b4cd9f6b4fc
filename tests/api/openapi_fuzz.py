"""schemathesis over /openapi.json against a running daemon: python -m tests.api.openapi_fuzz [examples an operation].

The suite runs a bounded part of it (test_openapi.py). Every answer must be below 500, and fit the document.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import hypothesis
import requests
import schemathesis
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi import checks as rules

from tests.harness.daemon import DaemonProcess

#: No source but the scripts: a random model id is never looked for elsewhere.
CONFIG = 'default_source = "scripted"\n[limits]\nper_principal = 64\n'
MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
SCRIPTS: dict[str, Any] = {
    "fuzz": {"turns": [{"emit": ["<think>", "hm", "</think>", "a word"]}], "added_tokens": MARKS},
    "spare": {"turns": [{"emit": ["spare"]}]},
}
CHECKS = [
    rules.status_code_conformance,
    rules.content_type_conformance,
    rules.response_schema_conformance,
]


@dataclass(slots=True)
class Outcome:
    label: str
    mode: str
    statuses: Counter[int] = field(default_factory=Counter)
    #: What was wrong, with the request.
    faults: list[str] = field(default_factory=list)


def operations(daemon: DaemonProcess) -> Iterator[Any]:
    document = daemon.get("/openapi.json")
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=daemon.url)
    load_all_checks()
    for result in schema.get_all_operations():
        assert isinstance(result, Ok), result
        yield result.ok()


def fuzz(daemon: DaemonProcess, operation: Any, mode: GenerationMode, examples: int, seed: int = 0) -> Outcome:
    """`examples` generated requests; those that name a model name ours half of the time."""
    outcome = Outcome(operation.label, mode.value)
    session = requests.Session()
    session.trust_env = False

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode), known=hypothesis.strategies.booleans())
    def send(case: Any, known: bool) -> None:
        if known:
            _name_model(case)
        response = case.call(session=session, timeout=30)
        outcome.statuses[response.status_code] += 1
        if response.status_code >= 500:
            outcome.faults.append(f"{response.status_code} {response.text[:300]} for {_shown(case)}")
            return
        try:
            case.validate_response(response, checks=CHECKS)
        except FailureGroup as group:
            outcome.faults += [f"{str(error)[:600]} for {_shown(case)}" for error in group.exceptions]

    try:
        send()
    except hypothesis.errors.Unsatisfiable:
        pass
    return outcome


def _name_model(case: Any) -> None:
    body = case.body
    if isinstance(body, dict):
        if "model" in body and isinstance(body["model"], str):
            body["model"] = "test/fuzz"
        if "model_id" in body and isinstance(body["model_id"], str):
            body["model_id"] = "scripted:test/spare"
    if isinstance(case.path_parameters, dict) and "id" in case.path_parameters:
        case.path_parameters["id"] = "test/fuzz"


def _shown(case: Any) -> str:
    body = case.body if isinstance(case.body, dict | list | str | int) else ""
    return f"{case.method} {case.formatted_path} {case.query} {json.dumps(body, default=str)[:400]}"


def main(examples: int) -> int:
    failed = 0
    with DaemonProcess(SCRIPTS, CONFIG) as daemon:
        for operation in operations(daemon):
            for mode in GenerationMode:
                begin = time.monotonic()
                outcome = fuzz(daemon, operation, mode, examples)
                took = time.monotonic() - begin
                shown = dict(sorted(outcome.statuses.items()))
                sys.stdout.write(f"{outcome.label} {mode.value}: {shown} in {took:.0f} s\n")
                for fault in list(dict.fromkeys(outcome.faults))[:8]:
                    sys.stdout.write(f"    {fault}\n")
                failed += len(outcome.faults)
                sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 500))
