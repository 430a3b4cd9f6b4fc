"""One account of a request: its log line, its metrics and its row of /requests tell the same figures."""

from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.harness.daemon import DaemonProcess, say

FAULT = {"at": 1, "phase": "decode", "kind": "device", "text": "illegal address", "times": 1}
SCRIPTS: dict[str, Any] = {
    "good": say("one ", "two ", "three", {"eos": True}, delay_ms=10),
    "broken": {"turns": [{"emit": ["x"], "repeat": True, "fault": FAULT}]},
}
CONFIG = '[[models]]\nid = "scripted:test/broken"\ndevices = ["cpu:1"]\n'


@pytest.fixture(name="daemon", scope="module")
def _daemon() -> Iterator[DaemonProcess]:
    with DaemonProcess(SCRIPTS, CONFIG, models=["good"]) as daemon:
        yield daemon


def samples(daemon: DaemonProcess) -> dict[tuple[str, ...], float]:
    """(name, sorted label values ...) -> value."""
    with daemon.client() as client:
        text = client.get("/metrics").text
    return {
        (sample.name, *(f"{key}={value}" for key, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_finished_request(daemon: DaemonProcess) -> None:
    before = samples(daemon)
    with daemon.client() as client:
        headers = {"x-request-id": "metric-1"}
        client.post("/v1/chat/completions", json=daemon.chat_body("good"), headers=headers).raise_for_status()
    line = daemon.wait_for_log("done", req_id="metric-1")
    after = samples(daemon)

    def gained(name: str, *labels: str) -> float:
        return after[(name, *labels)] - before.get((name, *labels), 0.0)

    model = "model=test/good"
    assert gained("neuron_requests_total", model, "outcome=stop") == 1
    assert gained("neuron_prompt_tokens_total", model) == line["prompt_tokens"]
    assert gained("neuron_completion_tokens_total", model) == line["completion_tokens"] == 4
    assert gained("neuron_time_to_first_token_seconds_count", model) == 1
    assert gained("neuron_time_to_first_token_seconds_sum", model) == pytest.approx(line["ttft_ms"] / 1e3, abs=1e-3)
    assert gained("neuron_inter_token_seconds_count", model) == 3
    assert gained("neuron_queue_wait_seconds_sum", model) == pytest.approx(line["queue_ms"] / 1e3, abs=1e-3)
    assert gained("neuron_request_seconds_count", model) == 1
    assert gained("neuron_http_requests_total", "code=", "method=POST", "route=/v1/chat/completions", "status=200") == 1
    row = next(row for row in daemon.get("/requests")["requests"] if row["req_id"] == "metric-1")
    assert (row["tokens_in"], row["tokens_out"], row["outcome"]) == (line["prompt_tokens"], 4, "stop")
    assert (row["ttft_ms"], row["queue_ms"]) == (line["ttft_ms"], line["queue_ms"])
    assert row["total_ms"] == pytest.approx(line["total_ms"], abs=5.0)


def test_a_fault_is_counted_where_it_belongs_and_outlives_the_unload(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        headers = {"x-request-id": "metric-2"}
        body = daemon.chat_body("broken", stream=True)
        text = client.post("/v1/chat/completions", json=body, headers=headers).text
    assert "device_fault" in text
    assert daemon.chat("broken").status_code == 503
    daemon.wait_for_log("device process died")
    now = samples(daemon)
    model = "model=test/broken"
    route = ("method=POST", "route=/v1/chat/completions")
    assert now["neuron_requests_total", model, "outcome=device_fault"] == 1
    assert now["neuron_requests_total", model, "outcome=model_poisoned"] == 1
    assert now["neuron_model_poisonings_total", model] == 1
    # The stream began with 200; its end is in the code.
    assert now["neuron_http_requests_total", "code=device_fault", *route, "status=200"] == 1
    assert now["neuron_http_requests_total", "code=model_poisoned", *route, "status=503"] == 1
    assert now["neuron_device_process_deaths_total", "device=cpu:1"] == 1
    assert now["neuron_device_up", "device=cpu:1"] == 0
    assert now["neuron_model_state", model, "state=poisoned"] == 1
    failed = daemon.wait_for_log("failed", req_id="metric-2")
    assert failed["completion_tokens"] == 1
    assert failed["ttft_ms"] is not None
    daemon.unload("broken")
    later = samples(daemon)
    kept = [key for key in now if key[0] == "neuron_requests_total"]
    assert {key: later[key] for key in kept} == {key: now[key] for key in kept}


def test_what_clients_send_makes_no_new_labels(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        for number in range(20):
            client.get(f"/nope/{number}")
            client.request("BREW", "/health")
            client.post("/v1/chat/completions", json=daemon.chat_body(f"scripted:none/{number}"))
    names = {key for key in samples(daemon) if "none/" in " ".join(key) or "nope" in " ".join(key) or "BREW" in key}
    assert names == set()
