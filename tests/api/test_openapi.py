"""/openapi.json tells the truth: real answers fit it, and a bounded run of generated requests finds no 5xx."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from schemathesis import GenerationMode

from neuron.api.openapi import document
from neuron.api.validate.ranges import IGNORED
from tests.api.openapi_fuzz import CONFIG, MARKS, SCRIPTS, fuzz, operations
from tests.harness.daemon import DaemonProcess

CALL = '{"name": "add", "arguments": {"a": 1}}'
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
FLAT: dict[str, Any] = {"type": "function", "name": "add", "parameters": {"type": "object"}}
FULL = {"emit": ["<think>", "hm", "</think>", "Sure. ", "<tool_call>", CALL, "</tool_call>"]}
#: Generated requests for each operation with a body, and for the others.
EXAMPLES, FEW = 12, 6


@pytest.fixture(name="daemon", scope="module")
def _daemon() -> Iterator[DaemonProcess]:
    full = {"turns": [FULL], "added_tokens": MARKS}
    broken = {"turns": [{"emit": ["a"], "fault": {"at": 0, "kind": "host", "text": "shape mismatch"}}]}
    with DaemonProcess({**SCRIPTS, "full": full, "broken": broken}, CONFIG) as daemon:
        yield daemon


def check(name: str, value: Any) -> None:
    components = document()["components"]
    jsonschema.validate(value, {"$ref": f"#/components/schemas/{name}", "components": components})


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "test/full", "messages": [{"role": "user", "content": "hi"}], "tools": [TOOL], **fields}


def frames(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]


def test_the_document_is_openapi() -> None:
    shown = document()
    assert shown["openapi"].startswith("3.1")
    for schema in shown["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for path, methods in shown["paths"].items():
        for operation in methods.values():
            assert operation["responses"]["200"]["content"], path
            assert operation["responses"]["default"]["content"]["application/json"]["schema"]
    named = set(shown["components"]["schemas"]["ChatRequest"]["properties"])
    assert not named & set(IGNORED)


def test_chat_answers_fit(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        for extra in ({}, {"logprobs": True, "top_logprobs": 2}, {"stop": ["Su"]}, {"max_tokens": 1}):
            body = client.post("/v1/chat/completions", json=chat(**extra)).json()
            check("ChatCompletion", body)
            for options in ({}, {"stream_options": {"include_usage": True}}):
                text = client.post("/v1/chat/completions", json=chat(stream=True, **extra, **options)).text
                chunks = frames(text)
                assert len(chunks) >= 2
                for chunk in chunks:
                    check("ChatCompletionChunk", chunk)


def test_responses_fit(daemon: DaemonProcess) -> None:
    body = {"model": "test/full", "input": "hi", "tools": [FLAT]}
    with daemon.client() as client:
        for extra in ({}, {"max_output_tokens": 1}, {"tool_choice": "none"}):
            check("Response", client.post("/v1/responses", json={**body, **extra}).json())
            events = frames(client.post("/v1/responses", json={**body, "stream": True, **extra}).text)
            for event in events:
                check("ResponseEvent", event)
                if "response" in event:
                    check("Response", event["response"])
                if "item" in event:
                    check("OutputItem", event["item"])


def test_errors_fit(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        answers = [
            client.post("/v1/chat/completions", json={**chat(), "model": "test/none"}),
            client.post("/v1/chat/completions", json={**chat(), "messages": [{"role": "user", "content": "x" * 9000}]}),
            client.post("/v1/chat/completions", json={**chat(), "model": "test/broken"}),
            client.post("/v1/responses", json={"model": "test/full", "input": "hi", "previous_response_id": "r"}),
            client.post("/v1/chat/completions", content=b"{"),
            client.post("/models/load", json={"model_id": "test/none"}),
            client.get("/nowhere"),
            client.put("/health"),
        ]
        assert [answer.status_code for answer in answers] == [404, 400, 500, 400, 415, answers[5].status_code, 404, 405]
        for answer in answers:
            check("ErrorBody", answer.json())


def test_control_answers_fit(daemon: DaemonProcess) -> None:
    names = {"/health": "HealthBody", "/discovery": "DiscoveryBody", "/version": "VersionBody"}
    names |= {"/v1/models": "OpenAiModels", "/v1/models/test/full": "OpenAiModel", "/health/ready": "StatusBody"}
    names |= {"/models/test%2Ffull/endpoint": "EndpointBody", "/models/test%2Ffull/capabilities": "CapabilitiesBody"}
    for path, name in names.items():
        check(name, daemon.get(path))
    for model in daemon.get("/models"):
        check("ModelBody", model)


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_schemathesis_finds_no_server_error(daemon: DaemonProcess, mode: GenerationMode) -> None:
    """Bounded; `python -m tests.api.openapi_fuzz` runs 500 an operation."""
    faults: list[str] = []
    requests = 0
    for operation in operations(daemon):
        outcome = fuzz(daemon, operation, mode, EXAMPLES if operation.method == "post" else FEW)
        requests += outcome.statuses.total()
        faults += outcome.faults
    assert faults == []
    assert requests >= 40
