"""Reuse of prompts as clients and operators see it: usage, timings, /health and /metrics of the real daemon."""

import json
from typing import Any

from tests.harness.daemon import DaemonProcess, say

LONG = "a long question " * 40


def _usage(body: dict[str, Any]) -> tuple[int, int]:
    usage = body["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def test_reuse_is_seen_everywhere() -> None:
    first = [{"role": "user", "content": LONG}]
    second = [*first, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "and " * 40}]
    with DaemonProcess({"m": say("yes")}, models=["m"]) as daemon:
        cold = daemon.chat("m", messages=first).json()
        warm = daemon.chat("m", messages=second).json()
        stream = daemon.chat("m", messages=second, stream=True)
        health = daemon.get("/health")["models"][0]["prefix_cache"]
        with daemon.client() as client:
            metrics = client.get("/metrics").text
    prompt, reused = _usage(warm)
    assert _usage(cold)[1] == 0
    assert 600 < reused < prompt
    timings = warm["timings"]
    assert (timings["cached_n"], timings["prompt_n"]) == (reused, prompt - reused)
    last = [json.loads(line[6:]) for line in stream.text.split("\n") if line.startswith("data: {")][-1]
    again = _usage(last)[1]
    assert again > reused
    assert (health["hits"], health["misses"], health["reused_tokens"]) == (2, 1, reused + again)
    assert 0 < health["bytes_used"] <= health["bytes_budget"]
    assert 'neuron_prefix_cache_requests_total{model="test/m",result="hit"} 2.0' in metrics
    assert f'neuron_prefix_cache_reused_tokens_total{{model="test/m"}} {float(reused + again)}' in metrics


def test_reuse_can_be_switched_off() -> None:
    with DaemonProcess({"m": say("yes")}, "[prefix_cache]\nenabled = false\n", models=["m"]) as daemon:
        answers = [daemon.chat("m", LONG).json() for _ in range(2)]
        assert daemon.get("/health")["models"][0]["prefix_cache"] is None
    assert [_usage(answer)[1] for answer in answers] == [0, 0]
