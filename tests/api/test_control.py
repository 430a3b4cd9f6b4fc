"""Control routes: the answers have the types they are described with, and say how the daemon is."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from neuron.actors.daemon import ModelState
from neuron.actors.errors import AlreadyLoaded, TpRequiresSafetensors
from neuron.api import bodies
from neuron.api.openapi import document
from tests.api.fake_daemon import FakeServer


@pytest.fixture(name="server")
def _server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/health", bodies.HealthBody),
        ("/health/live", bodies.StatusBody),
        ("/health/ready", bodies.StatusBody),
        ("/version", bodies.VersionBody),
        ("/models", list[bodies.ModelBody]),
        ("/models?all=true", list[bodies.ModelBody]),
        ("/models/org%2Fname/endpoint", bodies.EndpointBody),
        ("/models/demo:org%2Fname/capabilities", bodies.CapabilitiesBody),
        ("/v1/models", bodies.OpenAiModels),
        ("/v1/models/demo:org/name", bodies.OpenAiModel),
    ],
)
def test_answers_have_their_types(server: FakeServer, path: str, kind: Any) -> None:
    with server.client() as client:
        response = client.get(path)
    assert response.status_code == 200
    msgspec.json.decode(response.content, type=kind, strict=True)


@pytest.mark.parametrize("state", list(ModelState))
def test_states_become_words_that_gateways_know(server: FakeServer, state: ModelState) -> None:
    server.daemon.state = state
    shown = {
        ModelState.READY: "loaded",
        ModelState.LOADING: "loading",
        ModelState.RECOVERING: "recovering",
        ModelState.POISONED: "poisoned",
    }
    with server.client() as client:
        listed = [entry["status"] for entry in client.get("/models").json()]
        everything = client.get("/models?all=true").json()
        endpoint = client.get("/models/org%2Fname/endpoint")
        health = client.get("/health").json()
    assert listed == ([shown[state]] if state in shown else [])
    assert everything[0]["state"] == state.value
    assert endpoint.status_code == (200 if state in shown else 404)
    degraded = state in (ModelState.POISONED, ModelState.RECOVERING)
    assert health["status"] == ("degraded" if degraded else "ok")


def test_ready_waits_for_the_start_up_models_and_ends_with_the_drain(server: FakeServer) -> None:
    with server.client() as client:
        server.daemon.activation_state = "pre_warming"
        assert client.get("/health/ready").status_code == 503
        assert client.get("/health/live").status_code == 200
        server.daemon.activation_state = "ready"
        assert client.get("/health/ready").status_code == 200
        server.daemon.is_draining = True
        assert client.get("/health/ready").status_code == 503
        assert client.get("/health").json()["status"] == "draining"


@pytest.mark.parametrize(
    ("body", "devices"),
    [
        ({"devices": None, "quant": None, "tensor_parallel": None}, None),
        ({"devices": []}, None),
        ({"devices": ["cpu"], "harness": "candle"}, ("cpu",)),
        ({"devices": ["cpu:1"], "max_context": 64}, ("cpu:1",)),
    ],
)
def test_load_bodies(server: FakeServer, body: dict[str, Any], devices: Any) -> None:
    with server.client() as client:
        response = client.post("/models/load", json={"model_id": "org/name", **body})
    assert (response.status_code, response.json()) == (200, {"status": "loaded"})
    assert server.daemon.loads[0].devices == devices


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "model_id"),
        ({"model_id": 5}, 400, "model_id"),
        ({"model_id": "a/b", "tensor_parallel": 0}, 400, "tensor_parallel"),
        ({"model_id": "a/b", "quant": 5}, 400, "quant"),
        ({"model_id": "a/b", "devices": "cpu"}, 400, "devices"),
        ({"model_id": "a/b", "devices": [True]}, 400, "devices[0]"),
        ({"model_id": "a/b", "devices": ["cuda:77"]}, 422, None),
        ({"model_id": "a/b", "devices": [99]}, 422, None),
        ({"model_id": "a/b", "max_context": -1}, 400, "max_context"),
    ],
)
def test_bad_load_bodies(server: FakeServer, body: dict[str, Any], status: int, param: str | None) -> None:
    with server.client() as client:
        response = client.post("/models/load", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)


def test_an_unknown_model_is_named_by_the_field_it_came_in(server: FakeServer) -> None:
    with server.client() as client:
        error = client.post("/models/unload", json={"model_id": "no/such"}).json()["error"]
    assert (error["code"], error["param"], error["model_id"]) == ("model_not_found", "model_id", "no/such")


def test_refused_loads_carry_what_gateways_look_for(server: FakeServer) -> None:
    with server.client() as client:
        server.daemon.load_error = AlreadyLoaded("The model is already loaded with another spec.")
        assert b"already loaded" in client.post("/models/load", json={"model_id": "a/b"}).content
        server.daemon.load_error = TpRequiresSafetensors(
            "No.", model_id="a/b", tp_size=2, gguf_quants=["q4_0"], suggestion="Use one device."
        )
        body = client.post("/models/load", json={"model_id": "a/b"}).json()["error"]
    assert (body["kind"], body["code"], body["model_id"], body["tp_size"]) == (
        "tp_requires_safetensors",
        "tp_requires_safetensors",
        "a/b",
        2,
    )
    assert (body["gguf_quants"], body["suggestion"]) == (["q4_0"], "Use one device.")


def test_metrics_parse_and_count(server: FakeServer) -> None:
    with server.client() as client:
        client.get("/health")
        client.get("/nope/" + "x" * 100)
        text = client.get("/metrics").text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    requests = {
        (sample.labels["route"], sample.labels["status"]): sample.value
        for sample in families["neuron_http_requests"].samples
        if sample.name.endswith("_total")
    }
    assert requests[("/health", "200")] == 1
    assert requests[("other", "404")] == 1
    assert families["neuron_model_in_flight"].samples[0].labels == {"model": "org/name"}
    assert families["neuron_device_up"].samples[0].value == 1


def test_the_openapi_document_is_closed() -> None:
    described = document()
    schemas = described["components"]["schemas"]
    for name in _references(described):
        assert name in schemas, name
    assert schemas["ChatRequest"]["properties"]["temperature"] == {
        "type": ["number", "null"],
        "minimum": 0,
        "maximum": 2,
    }
    assert schemas["ModelBody"]["properties"]["vram_used_mb"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"].rpartition("/")[2]
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)
